"""The study of a search: held by one process, opened or gone on with, and of the same search as before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import optuna
from filelock import FileLock, Timeout
from omegaconf import DictConfig
from optuna.distributions import BaseDistribution, check_distribution_compatibility
from optuna.trial import FrozenTrial, TrialState

from lab.console import LabError, Unfinished, first_line, tell
from lab.runs.study import PRUNED_AT, PRUNER, SAMPLERS, chosen, shown, storage_at, without_half_line

# User attribute of a study: what all its trials have in common.
_FIXED = "fixed"


def check_same_search(study: optuna.Study, fixed: Sequence[str]) -> None:
    """Raises LabError if a study that was given a name began with another experiment or another fixed value."""
    begun = study.user_attrs.get(_FIXED)
    if begun is None and not study.trials:
        study.set_user_attr(_FIXED, list(fixed))
    elif begun is not None and (unlike := sorted({*begun} ^ {*fixed})):
        raise LabError(
            f"study {study.study_name} has begun with other values than these ({', '.join(unlike)}), and its best "
            "trial would be chosen among unlike ones: give another hydra.sweeper.study_name, or none"
        )


def check_same_space(study: optuna.Study, space: Mapping[str, BaseDistribution]) -> None:
    """Raises LabError if earlier trials had other keys, or values that Optuna cannot combine with those of now."""
    for trial in study.trials:
        whole = trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
        if unlike := sorted(trial.params.keys() ^ space.keys() if whole else trial.params.keys() - space.keys()):
            raise LabError(
                f"study {study.study_name} has searched {', '.join(sorted(trial.params))}, and this search differs in "
                f"{', '.join(unlike)}: give another hydra.sweeper.study_name, or none"
            )
        for key in trial.distributions.keys() & space.keys():
            try:
                check_distribution_compatibility(trial.distributions[key], space[key])
            except ValueError as error:
                raise LabError(
                    f"study {study.study_name} has searched other values of {key}: give another "
                    "hydra.sweeper.study_name, or none"
                ) from error


def cut_short_trials(study: optuna.Study, space: Mapping[str, BaseDistribution]) -> list[FrozenTrial]:
    """Trials that were begun and never ended; marks those that were pruned, or whose values were not all drawn."""
    left = []
    for trial in study.get_trials(states=[TrialState.RUNNING]):
        if PRUNED_AT in trial.user_attrs:  # the search had ended before its job told it so
            study.tell(trial.number, state=TrialState.PRUNED)
        elif trial.params.keys() != space.keys():
            study.tell(trial.number, state=TrialState.FAIL)
        else:
            left.append(trial)
    return left


@contextmanager
def written(name: str) -> Iterator[None]:
    """Says in one sentence that a study could not be written in the block, as on a full disk.

    Raises:
        Unfinished: in place of the error of the operating system.
    """
    try:
        yield
    except OSError as error:
        raise Unfinished(f"study {name} cannot be written ({error}): the same command goes on with it") from error


@contextmanager
def held(folder: Path, name: str) -> Iterator[None]:
    """Keeps other processes from running the same search within the block.

    Raises:
        LabError: if one runs it already, or the folder cannot be locked.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / f".{name}.lock", fallback_to_soft=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise LabError(
            f"another process is searching {name} below {folder.parent}: wait for it, or search something else"
        ) from None
    except OSError as error:
        raise LabError(
            f"{folder} cannot be locked, so that two processes might search the same: {error}; name another folder "
            "with paths.runs"
        ) from error
    try:
        yield
    finally:
        lock.release()


def opened(name: str, where: str, settings: DictConfig) -> optuna.Study:
    """Opens the study, a new one or the one to go on with, and sets its sampler and pruner.

    Raises:
        LabError: if the study cannot be opened or has another direction.
    """
    wanted = str(settings.direction)
    try:
        if without_half_line(where):
            tell(f"study {name}: its last line was not whole, as after a full disk, and is left out")
        study = optuna.create_study(
            study_name=name, storage=storage_at(where), direction=settings.direction, load_if_exists=True
        )
        known = study.trials
    except Exception as error:  # the errors of a database or of somebody else's file cannot be listed
        raise LabError(f"study {name} at {shown(where)} cannot be opened: {first_line(error)}") from error
    if known and study.direction.name.lower() != wanted:
        raise LabError(
            f"hydra.sweeper.direction={wanted}, but study {name} has {study.direction.name.lower()}: give another "
            "hydra.sweeper.study_name, or none"
        )
    options = dict(settings.sampler)
    if options.get("seed") is not None:
        # A sampler starts over in each process: with the same seed it would propose the same values again.
        options["seed"] += len(known)
    study.sampler = chosen("sampler", SAMPLERS, options)
    # Read by the processes of the trials.
    study.set_user_attr(PRUNER, dict(settings.pruner))
    return study
