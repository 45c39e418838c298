"""Writes a sweep's plan before its first job: a Hydra callback, named in ``configs/train.yaml``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser import types
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from lab.config.command_line import config_dir_of, each_value, parse_arguments
from lab.config.compose import initialized
from lab.config.explained import explained
from lab.config.hydra_internals import Choices, compose_multirun, loader, split_into_jobs
from lab.config.overrides import Override, last_of_each, parsed, values_of
from lab.console import LabError, cause_of, refusals
from lab.files import check_writable
from lab.runs.provenance import command_line
from lab.runs.spec import run_name, runs_folder, seeds_of
from lab.sweeps.plan import FOLDER, write_plan

# Groups whose configs may set any value, also the seeds.
_OF_ALL = ("experiment", "row", "debug")


class RecordPlan(Callback):
    """Writes what a multirun is going to run to ``<paths.runs>/.sweeps``, where ``lab.status`` finds what is missing.

    Only Hydra's own sweeper knows its jobs beforehand; a search decides as it goes and has no plan.
    """

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        runs = runs_folder(config)
        # Exits by itself: Hydra would only warn of an exception here, and fail for the same reason a moment later.
        with refusals():
            check_writable(runs / FOLDER, "paths.runs:")
        if not _is_plain(config):
            return
        with refusals():
            try:
                names = planned(config)
            except HydraException:
                # The sweep itself is about to fail for the same reason, and will report it.
                return
            check_apart(names)
        write_plan(runs, names, command_line())


def planned(config: DictConfig) -> list[str]:
    """Names of the run folders of a multirun; under ``seeds=``, one for every seed.

    Args:
        config: the multirun's, as Hydra composed it; Hydra must be initialised.

    Raises:
        HydraException: if an override is wrong.
        LabError: if ``seeds`` is wrong.
    """
    return [name for names in names_of(config, jobs_of(config)) for name in names]


def names_of(config: DictConfig, jobs: Sequence[Sequence[str]]) -> list[list[str]]:
    """Names of the run folders of each job of a multirun: of all its seeds.

    Args:
        config: the multirun's, as Hydra composed it; Hydra must be initialised.
        jobs: overrides of each.

    Raises:
        HydraException: if an override is wrong.
        LabError: if ``seeds`` is wrong.
    """
    choices = Choices(config.hydra.job.config_name)
    chosen_by: dict[tuple[str, ...], dict[str, str | None]] = {}
    configs: dict[tuple[str | None, ...], DictConfig] = {}
    known = config.hydra.runtime.choices
    names = []
    for job in jobs:
        typed = last_of_each(job)
        # Neither seeds nor values inside a group change which configs are chosen.
        groups = tuple(one.text for one in typed.values() if one.is_group and one.key not in ("seed", "seeds"))
        if groups not in chosen_by:
            chosen_by[groups] = choices.of(parsed(groups, loader()))
        chosen = chosen_by[groups]
        own = config
        # An experiment, say, may set seeds of its own, and those swept over are not in the multirun's config.
        if not {"seed", "seeds"} <= typed.keys() and any(chosen.get(one) != known.get(one) for one in _OF_ALL):
            kind = tuple(chosen.get(one) for one in _OF_ALL)
            if kind not in configs:
                configs[kind] = loader().load_sweep_config(config, list(groups))
            own = configs[kind]
        seed = _value(typed, "seed", own)
        seeds, experiment = seeds_of(_value(typed, "seeds", own), seed), str(chosen.get("experiment") or "custom")
        names.append([run_name(experiment, str(chosen["softmax"]), number, job) for number in seeds])
    return names


def check_apart(names: Sequence[str]) -> None:
    """Checks that no two runs of a sweep have the same run folder.

    Raises:
        LabError: at the first folder that two runs have.
    """
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        more = f", and {len(twice) - 1} more" if len(twice) > 1 else ""
        raise LabError(
            f"two runs of this sweep would share a folder, {twice[0]}{more}: give each value once, two classes "
            "of softmax names of their own, write a key that the sweep has without ++, and with seeds=4 give every "
            "fourth seed, as in seed=0,4"
        )


def planned_runs(arguments: Sequence[str]) -> tuple[Path, list[Path]]:
    """Returns the folder of all runs, and the run folders in it that ``lab.train -m <arguments>`` would make.

    Raises:
        LabError: if the arguments are wrong, two runs would have one folder, or the arguments ask for a search, which
            chooses its runs as it goes.
    """
    given = parse_arguments(arguments)
    overrides = list(given.overrides)
    for _ in each_value(overrides, config_dir_of(given)):
        pass  # composing a wrong value raises the error that explains it
    with initialized(config_dir_of(given)):
        try:
            config = compose_multirun(overrides)
            if not _is_plain(config):
                raise LabError("a search chooses its runs as it goes, so there is no list of them beforehand")
            names = planned(config)
        except (HydraException, OmegaConfBaseException) as error:
            raise LabError(explained(error, overrides)) from cause_of(error)
    runs = runs_folder(config)
    check_apart(names)
    return runs, [runs / name for name in names]


def jobs_of(config: DictConfig) -> Sequence[Sequence[str]]:
    """Splits a multirun into the overrides of each job, as Hydra's own sweeper does."""
    return split_into_jobs(overrides_of(config))


def overrides_of(config: DictConfig) -> list[types.Override]:
    """Overrides of a multirun: first those of its sweep's file, then those that were typed."""
    params = [f"{key}={value}" for key, value in values_of(config.hydra.sweeper.params).items()]
    return parsed([*params, *config.hydra.overrides.task], loader())


def _is_plain(config: DictConfig) -> bool:
    """Tells a plain sweep from a search."""
    return config.hydra.runtime.choices["hydra/sweeper"] == "basic"


def _value(typed: dict[str, Override], key: str, config: DictConfig) -> Any:
    return typed[key].parsed() if key in typed else config[key]
