"""``summary.json``: what was run, how far it came, how it ended. Only this module reads and writes it.

A summary is data that anybody may have written: it is checked against its type before any value is used.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from lab.files import DamagedFile, as_path, read_json, write_atomically, write_json
from lab.runs.lock import is_held
from lab.runs.metric_names import falls, is_accuracy, value_told

FILE = "summary.json"
# Rises when a field changes its meaning; a summary without one is from before there were versions.
VERSION = 1
RESERVE, _RESERVED_BYTES = ".reserve", 2**16

Status = Literal["running", "finished", "stopped", "failed"]
Seconds = Annotated[FiniteFloat, Field(ge=0)]
# Below 2**53 a float holds every whole number exactly; metrics.csv has the same limit.
Count = Annotated[int, Field(ge=0, lt=2**53)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow", strict=True, protected_namespaces=())


class Change(_Part):
    """Change point of a metric (:mod:`lab.observation.change_point`).

    Attributes:
        epoch, step: of the first validation after the change.
        before, after: height of the plateaus before and after it.
        strength: from 0.85 (nearly a slope) to 1 (a perfect step).
    """

    epoch: Count
    step: Count
    before: FiniteFloat
    after: FiniteFloat
    strength: FiniteFloat


class Eureka(_Part):
    """Eureka-moment of a run.

    Attributes:
        happened: whether there was a moment; None where it was not watched for.
        metric: the metric that was watched; older summaries, where it was always val/accuracy, do not say it.
        falls: whether lower values of the metric are better.
        threshold: value that the metric has to pass; None where a moment was not watched for.
        prior_accuracy: accuracy of the prior p(z) alone, the height of the plateau; None where it is not known.
        prior_loss: loss of the prior alone; None where it is not known.
        epoch, step, wall_seconds, samples, accuracy, value: when the moment was, and what was reached then, ``value``
            being the metric's; None without a moment.
        changed: whether the metric has a change point, found without the threshold; None where none was looked for.
        change: the change point; None without one.
    """

    happened: bool | None = None
    metric: str = "val/accuracy"
    falls: bool = False
    threshold: FiniteFloat | None = None
    prior_accuracy: FiniteFloat | None = None
    prior_loss: FiniteFloat | None = None
    epoch: Count | None = None
    step: Count | None = None
    wall_seconds: Seconds | None = None
    samples: Count | None = None
    accuracy: FiniteFloat | None = None
    value: FiniteFloat | None = None
    changed: bool | None = None
    change: Change | None = None

    @model_validator(mode="after")
    def _a_moment_has_an_epoch(self) -> Eureka:
        if self.happened and self.epoch is None:
            raise ValueError("happened is true, and epoch is missing")
        if self.changed and self.change is None:
            raise ValueError("changed is true, and change is missing")
        return self

    @property
    def shown_step(self) -> float | None:
        """Step of the moment, for a picture; None without one, NaN where it was not watched for."""
        return math.nan if self.happened is None else self.step

    def drawn(self, quantity: str) -> str:
        """Metric to draw as "accuracy" or "loss": the watched one if it is of that kind, else ``val/<quantity>``."""
        own = "accuracy" if is_accuracy(self.metric) else "loss" if falls(self.metric) else None
        return self.metric if own == quantity else f"val/{quantity}"


class Best(_Part):
    """Best validation accuracy, and its epoch."""

    accuracy: FiniteFloat
    epoch: Count


class Git(_Part):
    """Commit that ran, and whether files differed from it."""

    commit: str | None = None
    modified: bool = False


class Summary(_Part):
    """Content of ``summary.json``.

    Attributes:
        status: "running", "finished", "stopped" or "failed".
        softmax: the chosen softmax.
        seed: of the run.
        experiment: the chosen experiment.
        name: of the run folder below ``paths.runs``.
        overrides: as typed.
        command, git, versions, machine, slurm_job: where the run comes from.
        own_code: digests of the user's own files that the run was trained with, one after the other, by module.
        seeds_together: how many seeds began together in one process; None for one alone.
        started, written: times in UTC.
        epochs, max_epochs, steps, samples: how far it came.
        wall_seconds: of training, interruptions left out.
        samples_per_second: training speed; None before it is measured.
        seconds_left: of a running run, by its pace when this was written; None where it is not known.
        eureka: the Eureka-moment.
        best: the best validation accuracy; None before the first validation.
        metrics: the newest value of everything logged; None where it was not finite.
        peak_memory_bytes: by "host" and "device".
        error: why it failed.
        diverged: whether it failed because its loss was no finite number, so that training it again would not help.
        pruned: whether the pruner of a search ended it, because its accuracy was low; no longer once it has finished.
    """

    version: int = 0
    status: Status
    seed: Count
    softmax: str
    experiment: str | None = None
    name: str = ""
    overrides: tuple[str, ...] = Field(default=(), strict=False)
    command: str | None = None
    git: Git = Git()
    versions: Mapping[str, str] = Field(default_factory=dict)
    machine: Mapping[str, Any] = Field(default_factory=dict)
    slurm_job: str | None = None
    own_code: Mapping[str, Annotated[tuple[str, ...], Field(strict=False)]] = Field(default_factory=dict)
    seeds_together: Count | None = None
    started: str | None = None
    written: str | None = None
    epochs: Count = 0
    max_epochs: int | None = None
    steps: Count = 0
    samples: Count = 0
    wall_seconds: Seconds = 0.0
    samples_per_second: FiniteFloat | None = None
    seconds_left: Seconds | None = None
    eureka: Eureka = Eureka()
    best: Best | None = None
    metrics: Mapping[str, FiniteFloat | None] = Field(default_factory=dict)
    peak_memory_bytes: Mapping[str, int] = Field(default_factory=dict)
    error: str | None = None
    diverged: bool = False
    pruned: bool = False

    @model_validator(mode="after")
    def _a_finished_run_has_trained(self) -> Summary:
        if self.finished and "epochs" not in self.model_fields_set:
            raise ValueError("status is finished, and epochs are missing")
        return self

    @property
    def finished(self) -> bool:
        """Tells whether the run has come to its end."""
        return self.status == "finished"

    @property
    def accuracy(self) -> float | None:
        """Newest validation accuracy, in [0, 1]; None before the first validation."""
        return self.metrics.get("val/accuracy")

    @property
    def watched(self) -> float | None:
        """Newest value of the metric that is watched for the moment; None before the first validation."""
        return self.metrics.get(self.eureka.metric)

    @property
    def moment(self) -> int | None:
        """Epoch of the Eureka-moment; None without one."""
        return self.eureka.epoch if self.eureka.happened else None

    @property
    def change(self) -> int | None:
        """Epoch of the change point of the metric that was watched; None without one."""
        return self.eureka.change.epoch if self.eureka.changed and self.eureka.change else None

    def __str__(self) -> str:
        """Says in one line how the run ended."""
        told = []
        # Without a threshold, no moment was watched for.
        if self.eureka.threshold is not None:
            told.append("no Eureka-moment" if self.moment is None else f"Eureka-moment at epoch {self.moment}")
        told += [] if self.change is None else [f"change point at epoch {self.change}"]
        told += [f"validation {self.watched_told}"] if self.watched_told else []
        told += [] if self.accuracy is None else [f"validation accuracy {self.accuracy:.2%}"]
        told.append(f"{self.steps} steps")
        told += [self.error] if self.error else []
        return f"{self.status}: {', '.join(told)}"

    __repr__ = __str__  # a notebook shows the list that lab.run returns by it

    @property
    def watched_told(self) -> str:
        """The watched metric and its newest value, as in "loss 5.61"; "" before there is one, and for the accuracy."""
        name = self.eureka.metric.removeprefix("val/")
        if self.watched is None or name == "accuracy":
            return ""
        return f"{name} {value_told(name, self.watched, digits=2)}"


class NewerSummary(DamagedFile):
    """A summary that a newer version of the lab has written."""


def load_summary(folder: str | Path) -> Summary:
    """Reads the summary of a run folder as it was written.

    Raises:
        DamagedFile: if there is none, or it is not one.
        NewerSummary: if this version of the lab does not know it.
        LabError: if ``folder`` is no path.
    """
    folder = as_path(folder, "load_summary('runs/reasoning/softmax/seed=0')")
    if os.path.isfile(folder):  # False, too, of a name that is too long for the file system
        raise DamagedFile(folder, "is a file: give the run folder that it lies in")
    if not os.path.isdir(folder):
        raise DamagedFile(folder, "holds no run: there is no such folder")
    path = folder / FILE
    # Not with pydantic's own JSON parser: NaN must be told apart from a number.
    try:
        content = read_json(path)
    except DamagedFile as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        from lab.runs.walk import instead_of  # here, since it looks for what this module names

        raise DamagedFile(folder, f"holds no run: {instead_of(folder, FILE)}") from None
    version = content.get("version") if isinstance(content, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise NewerSummary(path, f"is of version {version}, and this lab reads up to {VERSION}: update the lab")
    try:
        return Summary.model_validate(content)
    except ValidationError as error:
        raise DamagedFile(path, f"is wrong: {_first(error)}") from error
    except RecursionError as error:
        raise DamagedFile(path, "is wrong: it is nested too deeply") from error


def read_summary(folder: str | Path) -> Summary | None:
    """Reads a run folder's summary, corrected by :func:`as_it_is_now`; None where there is none, or it is damaged."""
    try:
        return as_it_is_now(load_summary(folder), Path(folder))
    except DamagedFile:
        return None


def as_it_is_now(summary: Summary, folder: Path) -> Summary:
    """Corrects a summary that says "running" though no process holds the folder: the run was killed, so "stopped"."""
    if summary.status != "running" or is_held(folder):
        return summary
    return summary.model_copy(update={"status": "stopped"})


def write_summary(folder: Path, summary: Summary) -> None:
    """Writes a summary atomically into a run folder; the last one of a run fits even on a full disk."""
    if summary.status != "running":
        give_room_back(folder)
    write_json(folder / FILE, summary.model_dump(mode="json", exclude_unset=True), make_folder=False)


def reserve_room(folder: Path) -> None:
    """Reserves as much of the disk as the last summary of a run needs, until that summary is written."""
    # Random bytes, since some file systems keep no room for what they can compress.
    write_atomically(folder / RESERVE, lambda file: file.write(os.urandom(_RESERVED_BYTES)))


def give_room_back(folder: Path) -> None:
    """Removes what :func:`reserve_room` took."""
    (folder / RESERVE).unlink(missing_ok=True)


def is_finished(folder: Path) -> bool:
    """Tells whether the run of a folder has come to its end."""
    summary = read_summary(folder)
    return summary is not None and summary.finished


def _first(error: ValidationError) -> str:
    """Says the first thing that is wrong, and where."""
    missing = [".".join(map(str, one["loc"])) for one in error.errors() if one["type"] == "missing"]
    if missing:
        return f"it does not say {', '.join(missing)}"
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    message = first["msg"].removeprefix("Value error, ")
    return f"{where}: {message[0].lower()}{message[1:]}" if where else message
