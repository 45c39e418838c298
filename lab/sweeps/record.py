"""Writes a sweep's plan before its first job: a Hydra callback, named in ``configs/train.yaml``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hydra._internal.config_repository import CachingConfigRepository
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.defaults_list import create_defaults_list
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from lab.console import LabError
from lab.runs.folder import run_name
from lab.runs.provenance import command_line
from lab.sweeps.plan import write_plan
from lab.training.seeds.numbers import numbers

_BASIC = f"{BasicSweeper.__module__}.{BasicSweeper.__qualname__}"


class RecordPlan(Callback):
    """Writes what a multirun is going to run to ``<paths.runs>/.sweeps``, where ``lab.status`` finds what is missing.

    Only Hydra's own sweeper knows its jobs beforehand; a search decides as it goes and has no plan.
    """

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        if config.hydra.sweeper._target_ != _BASIC:
            return
        try:
            names = planned(config)
        except (HydraException, LabError):
            # The sweep is about to fail of just this, and says so.
            return
        write_plan(Path(config.paths.runs).expanduser().absolute(), names, command_line())


def planned(config: DictConfig) -> list[str]:
    """Names of the run folders of a multirun; under ``seeds=``, one for every seed.

    Args:
        config: the multirun's, as Hydra composed it; Hydra must be initialised.

    Raises:
        HydraException: if an override is wrong.
        LabError: if ``seeds`` is.
    """
    loader = GlobalHydra.instance().config_loader()
    parser = OverridesParser.create(loader)
    configs = CachingConfigRepository(loader.repository)  # type: ignore[attr-defined]

    @cache
    def value(override: str) -> Any:
        return parser.parse_override(override).value()

    @cache
    def choices(overrides: tuple[str, ...]) -> dict[str, str | None]:
        # Not composed: that takes four times as long, and a name needs no more than the chosen configs.
        typed = parser.parse_overrides(list(overrides))
        found = create_defaults_list(configs, config.hydra.job.config_name, typed, True, False)
        return found.overrides.known_choices

    names = []
    for job in _jobs(config, parser):
        keys = {override.split("=", 1)[0]: override for override in job}
        seed = value(keys["seed"]) if "seed" in keys else config.seed
        asked = value(keys["seeds"]) if "seeds" in keys else config.seeds
        # Neither numbers nor values inside a group change what is chosen.
        groups = (o for key, o in keys.items() if "." not in key and key not in ("seed", "seeds"))
        chosen = choices(tuple(groups))
        for number in [seed] if asked is None else numbers(asked, seed):
            names.append(run_name(str(chosen.get("experiment") or "custom"), str(chosen["softmax"]), number, job))
    return names


def _jobs(config: DictConfig, parser: OverridesParser) -> Sequence[Sequence[str]]:
    """Overrides of every job, split as Hydra's own sweeper splits them."""
    params = [f"{key}={value}" for key, value in (config.hydra.sweeper.params or {}).items()]
    typed = parser.parse_overrides([*params, *config.hydra.overrides.task])
    (jobs,) = BasicSweeper.split_arguments(typed, None)
    return jobs
