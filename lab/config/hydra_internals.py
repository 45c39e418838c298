"""The only place that calls Hydra's private API; tests/lab/test_hydra_internals.py fails by name when Hydra changes."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

from hydra._internal.config_repository import CachingConfigRepository
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.defaults_list import create_defaults_list
from hydra._internal.hydra import Hydra
from hydra._internal.utils import get_args_parser
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig

# ``hydra.sweeper._target_`` of Hydra's own sweeper, the only one that knows its jobs beforehand.
BASIC_SWEEPER = f"{BasicSweeper.__module__}.{BasicSweeper.__qualname__}"


def argument_parser() -> ArgumentParser:
    """Returns the parser of Hydra's own command line (``-m``, ``--cfg``, ``--config-dir``)."""
    return get_args_parser()


def hydra() -> Hydra:
    """Returns the initialised Hydra.

    Raises:
        AssertionError: if none is initialised.
    """
    found = GlobalHydra.instance().hydra
    assert found is not None
    return found


def loader() -> ConfigLoader:
    """Returns the initialised Hydra's config loader."""
    return GlobalHydra.instance().config_loader()


def prepend_to_search_path(path: str) -> None:
    """Makes the initialised Hydra look for configs in ``path``, too, as ``--config-dir`` does."""
    own: Any = loader()
    own.config_search_path.prepend("command-line", path, SearchPathQuery(provider="schema"))
    own.repository.initialize_sources(own.config_search_path)


def compose_multirun(overrides: Sequence[str]) -> DictConfig:
    """Composes ``configs/train.yaml`` as ``python -m lab.train -m`` does, Hydra's own settings included."""
    return hydra().compose_config("train", list(overrides), RunMode.MULTIRUN, with_log_configuration=False)


def split_into_jobs(overrides: list[Override]) -> Sequence[Sequence[str]]:
    """Splits the overrides of a sweep into those of each job, as Hydra's own sweeper does."""
    (jobs,) = BasicSweeper.split_arguments(overrides, None)
    return jobs


class Choices:
    """Tells which configs overrides choose, without composing: that takes four times as long."""

    def __init__(self, config_name: str) -> None:
        self._config_name = config_name
        # Every file of configs/ is read once.
        own: Any = loader()
        self._repository = CachingConfigRepository(own.repository)

    def of(self, overrides: list[Override]) -> dict[str, str | None]:
        """Returns group -> chosen config."""
        found = create_defaults_list(self._repository, self._config_name, overrides, True, False)
        return found.overrides.known_choices
