"""Composes a config from overrides, with the files of ``configs/`` and of an optional folder of one's own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from lab.config.hydra_internals import keep_configs, prepend_to_search_path
from lab.console import LabError

# Expands ~ and ~user: ${eureka_lab.home:${paths.runs}}. With our prefix: Hydra imports this in other programs, too.
OmegaConf.register_new_resolver("eureka_lab.home", os.path.expanduser, replace=True)

CONFIGS = Path(__file__).resolve().parent.parent / "configs"


@contextmanager
def initialized(config_dir: Path | None = None) -> Iterator[None]:
    """Initialises Hydra for the block, with ``configs/`` and a folder of further configs, as under ``--config-dir``.

    Raises:
        LabError: if there is no such folder.
    """
    if config_dir is not None and not config_dir.is_dir():
        raise LabError(f"--config-dir {config_dir} is no folder: name the one that holds softmax/, model/ or the like")
    # The calling program may itself be run by Hydra: its state is put back at the end.
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            keep_configs(CONFIGS)
            if config_dir is not None:
                prepend_to_search_path(f"file://{config_dir.absolute()}")
            yield
    finally:
        if outer is not None:
            GlobalHydra.instance().clear()
            GlobalHydra.instance().initialize(outer)


def compose_config(overrides: Sequence[str]) -> DictConfig:
    """The config that ``python -m lab.train`` composes from these overrides; ``paths.run`` is still to be set.

    Raises:
        HydraException: if they do not compose; ``lab.config.command_line.composed`` says why in one sentence.
    """
    with initialized():
        return compose("train", overrides=list(overrides))
