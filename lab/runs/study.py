"""The Optuna study of a search: where it is kept, and its samplers and pruners by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna import pruners, samplers
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from sqlalchemy import make_url

from lab.config.check import check_arguments
from lab.config.suggestions import choices
from lab.console import LabError

# By name in hydra.sweeper.sampler. A grid needs no sampler of its own: the search itself queues its points.
SAMPLERS: dict[str, type[samplers.BaseSampler]] = {
    "tpe": samplers.TPESampler,
    "random": samplers.RandomSampler,
    "grid": samplers.RandomSampler,
    "cmaes": samplers.CmaEsSampler,
    "nsgaii": samplers.NSGAIISampler,
}
PRUNERS: dict[str, type[pruners.BasePruner]] = {
    "none": pruners.NopPruner,
    "threshold": pruners.ThresholdPruner,
    "median": pruners.MedianPruner,
    "successive_halving": pruners.SuccessiveHalvingPruner,
}
# User attributes: the first of a study, the second of a trial.
PRUNER, PRUNED_AT = "pruner", "pruned at epoch"


def chosen(what: str, classes: Mapping[str, type[Any]], options: Mapping[str, Any]) -> Any:
    """Makes the sampler or pruner that ``options["name"]`` names, with all other options.

    Raises:
        LabError: if there is none of that name, or it does not take an option.
    """
    given = dict(options)
    name = str(given.pop("name", None))
    if name not in classes:
        raise LabError(f"hydra.sweeper.{what}.name={name} does not exist; {choices(name, list(classes))}")
    check_arguments(classes[name], given, f"hydra.sweeper.{what}")
    try:
        return classes[name](**given)
    except (TypeError, ValueError) as error:
        raise LabError(f"hydra.sweeper.{what}: {error}") from error


def storage_at(where: str) -> BaseStorage:
    """The storage at a database's URL, or in a file, which several machines may share."""
    return RDBStorage(where) if "://" in where else JournalStorage(JournalFileBackend(where))


def shown(where: str) -> str:
    """A storage as text that others may read: a database's URL without its password."""
    return make_url(where).render_as_string(hide_password=True) if "://" in where else where


def without_half_line(where: str) -> bool:
    """Cuts a last line off a study's file that a full disk or a crash has left unfinished; tells whether there was one.

    Optuna passes over such a line as it reads, but would write on behind it, and both lines would be lost.
    """
    path = Path(where)
    if "://" in where or not path.is_file() or not _half_line(path):
        return False
    lock = JournalFileSymlinkLock(where)
    lock.acquire()
    try:
        if half := _half_line(path):  # and not a line that was just being written
            os.truncate(path, path.stat().st_size - half)
        return bool(half)
    finally:
        lock.release()


def _half_line(path: Path) -> int:
    """Bytes behind the last end of a line."""
    content = path.read_bytes()
    return len(content) - (content.rfind(b"\n") + 1)


class RunningTrial:
    """A trial of a search, in the process that trains it.

    Args:
        reference: ``study``, ``number`` and ``storage`` of the trial: what a search writes into ``config.trial``.
    """

    def __init__(self, reference: Mapping[str, Any]) -> None:
        name, number, storage = str(reference["study"]), int(reference["number"]), storage_at(reference["storage"])
        # Some samplers read all trials whenever one is opened; a random sampler does not.
        study = optuna.load_study(study_name=name, storage=storage, sampler=samplers.RandomSampler())
        study.pruner = chosen("pruner", PRUNERS, study.user_attrs[PRUNER])
        before = study.trials[number]
        # If somebody runs the command of an ended trial again, nothing is reported.
        self._ended = before.state.is_finished()
        self._last_epoch = before.last_step or 0
        trial_id = storage.get_trial_id_from_study_id_trial_number(storage.get_study_id_from_name(name), number)
        self._trial = optuna.Trial(study, trial_id)

    def is_pruned(self, epoch: int, value: float) -> bool:
        """Reports a value of the objective; tells whether the search's pruner gives the trial up."""
        # A resumed run trains some epochs again that were already reported.
        if self._ended or epoch <= self._last_epoch:
            return False
        self._trial.report(value, epoch)
        if not self._trial.should_prune():
            return False
        self._trial.set_user_attr(PRUNED_AT, epoch)
        return True
