"""Reads one run folder into a record; imports no torch, so that the processes that gather runs start quickly."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.config.compose import CONFIGS
from lab.config.identity import flatten, identity
from lab.config.overrides import read_override
from lab.console import LabError
from lab.files import DamagedFile
from lab.observation.change_point import last_visible
from lab.runs.metrics import FILE as METRICS
from lab.runs.metrics import read_metrics_table
from lab.runs.stored_config import FILE as CONFIG
from lab.runs.stored_config import read_config
from lab.runs.summary import FILE as SUMMARY
from lab.runs.summary import Summary, load_summary

# The numbers of an epoch that curves are drawn from: rows of Record.curves. Where a run watched another accuracy or
# loss than val/accuracy or val/loss, that metric takes its place.
CURVES = ("epoch", "train/accuracy", "train/loss", "val/accuracy", "val/loss")
FILES = (SUMMARY, CONFIG, METRICS)
# Key of the epochs between two validations.
CADENCE = "trainer.check_val_every_n_epoch"


@dataclass(frozen=True, eq=False)
class Record:
    """A run, as its folder tells it.

    Attributes:
        folder: absolute path.
        summary: its ``summary.json``.
        config: what was run by dotted key, without the seed.
        curves: [len(CURVES), validations], float32, NaN where a number was not logged; epochs count from 1.
    """

    folder: Path
    summary: Summary
    config: Mapping[str, Any]
    curves: NDArray[np.float32]

    @property
    def status(self) -> str:
        return self.summary.status

    @property
    def finished(self) -> bool:
        return self.summary.finished

    @property
    def seed(self) -> int:
        return self.summary.seed

    @property
    def experiment(self) -> str:
        return self.summary.experiment or "custom"

    @property
    def softmax(self) -> str:
        return self.summary.softmax

    @property
    def overrides(self) -> tuple[str, ...]:
        return self.summary.overrides

    @property
    def epochs(self) -> int:
        return self.summary.epochs

    @property
    def cut_short(self) -> bool:
        """True if a finished run was not trained to its end: something else, such as trainer.max_time, ended it."""
        last, steps = self.summary.max_epochs, self.config.get("trainer.max_steps")
        at_the_end = (last is not None and 0 <= last <= self.epochs) or (
            isinstance(steps, int) and 0 < steps <= self.summary.steps
        )
        after = self.config.get("callbacks.eureka.stop_after")
        after_its_moment = self.moment is not None and after is not None and self.epochs >= self.moment + after
        return self.finished and last is not None and not at_the_end and not after_its_moment

    @property
    def stops_early(self) -> bool:
        """True if the run ends soon after its moment: the first runs to finish are then those with a moment."""
        return self.config.get("callbacks.eureka.stop_after") is not None

    @property
    def pruned(self) -> bool:
        """True if the pruner of a search ended the run, because its accuracy was low."""
        return self.summary.pruned

    @property
    def validated_epochs(self) -> int:
        """Epochs up to the last validation that the summary knows of, since a later moment would go unseen.

        All epochs if there are no curves.
        """
        return int(self._epochs_of_validations.max(initial=0)) if self.curves.size else self.epochs

    @property
    def settled(self) -> bool:
        """True if no moment can come any more: the run has finished, or its loss diverged."""
        return self.finished or self.summary.diverged

    @property
    def watched_until(self) -> int:
        """Last epoch at which it is known whether the moment has come: the last validation, or a moment after it.

        A run that diverged before its moment would never have had one: it counts to the end of its training.
        """
        if self.summary.diverged and self.moment is None:
            return max(self.validated_epochs, self.last_epoch)
        # Of a run whose newest rows are lost, the summary may tell a moment after the last validation.
        return max(self.validated_epochs, self.moment or 0)

    @property
    def last_epoch(self) -> int:
        """Epoch at which max_epochs or max_steps would have ended the training; 0 where it is not known.

        Steps become epochs by those that were trained. The last may be part of an epoch: then it is too early, by one
        part in as many as there are epochs.
        """
        epochs, steps = self.summary.max_epochs or -1, self.config.get("trainer.max_steps")
        ends = [epochs] if epochs > 0 else []
        if isinstance(steps, int) and steps > 0 and self.epochs:
            ends.append(math.ceil(steps * self.epochs / max(1, self.summary.steps)))
        return min(ends, default=0)

    @property
    def visible_epochs(self) -> int:
        """Epochs up to the last validation at which a change point would show; all epochs if there are no curves."""
        if not self.curves.size:
            return self.epochs
        last = last_visible(self.validations)
        return 0 if last is None else int(self._epochs_of_validations[last])

    @property
    def validations(self) -> int:
        """Validations that the curves hold and the summary knows of."""
        return len(self._epochs_of_validations)

    @property
    def _epochs_of_validations(self) -> NDArray[np.float32]:
        there = np.isfinite(self.curves[CURVES.index("val/accuracy") :])
        epochs = self.curves[0, np.logical_or.reduce(there, axis=0)]
        # The rows of a run that trains, or was killed, are newer than its summary, which does not know their moment.
        return epochs if self.finished else epochs[epochs <= self.epochs]

    @property
    def moment(self) -> int | None:
        """Epoch of the Eureka-moment; None without."""
        return self.summary.moment

    @property
    def change(self) -> int | None:
        """Epoch of the change point of the metric that was watched; None without."""
        return self.summary.change

    @property
    def watched_for(self) -> bool:
        """True if the run was watched for a Eureka-moment; if it was not, having none says nothing."""
        return self.threshold is not None

    @property
    def looked_for_change(self) -> bool:
        """True if the run was watched for a change point."""
        return self.summary.eureka.changed is not None

    @property
    def threshold(self) -> float | None:
        """Value of the watched metric that the Eureka-moment has to pass."""
        return self.summary.eureka.threshold

    @property
    def prior_accuracy(self) -> float | None:
        """Accuracy that the prior p(z) alone reaches: the height of the plateau; None where it is not known."""
        return self.summary.eureka.prior_accuracy

    @property
    def accuracy(self) -> float | None:
        """Validation accuracy at the end, in [0, 1]."""
        return self.summary.accuracy

    def curve(self, name: str) -> NDArray[np.float32]:
        """One of CURVES."""
        return self.curves[CURVES.index(name)]


def read_record(folder: Path) -> Record:
    """Reads a run folder.

    Raises:
        DamagedFile: if one of its files is missing or not valid.
    """
    summary = load_summary(folder)
    try:
        typed = {one.key: one.value for one in map(read_override, summary.overrides)}
    except LabError as error:
        raise DamagedFile(folder / SUMMARY, f"is wrong: {error}") from error
    config = what_is_run(read_config(folder), summary.seed, typed)
    return Record(folder, summary, config, _curves(folder / METRICS, summary, config))


def what_is_run(plain: Mapping[str, Any], seed: int, typed: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Returns a composed config by dotted key, without keys that only watch and keys that follow the seed.

    Args:
        plain: the config as plain values.
        seed: of the run.
        typed: values that were given on the command line, by key: these are meant as they are, even where they equal
            the seed.
    """
    typed = typed or {}

    def follows_the_seed(key: str, value: Any) -> bool:
        # The seed of a source (data.source.digits.seed) is kept: it chooses the pictures, the same for all seeds.
        return key == "seed" or (key == "data.seed" and value == seed and key not in typed)

    # A data folder given on the command line says what is learned, though identity() leaves folders out.
    data = flatten({"data": plain.get("data") or {}})
    # So does a config of one's own, of which identity() may leave out all that tells it from another.
    own = {
        key: name
        for key, name in typed.items()
        if (key == "data" or key.startswith("data/")) and not _is_the_labs(key, name)
    }
    told = {key: value for key, value in data.items() if key in typed and key.endswith((".folder", ".root"))}
    return {
        key: value
        for key, value in (identity(plain) | told | own).items()
        # A key with the value null counts as no key: older runs lack keys that were added later with that default.
        if value is not None and not only_watches(key) and not follows_the_seed(key, value)
    }


def _is_the_labs(group: str, name: str) -> bool:
    """Tells whether a chosen config is one of the lab's own."""
    return (CONFIGS / group / f"{name}.yaml").exists()


def only_watches(key: str) -> bool:
    """Tells whether a key sets callbacks that never change what is learnt: all but Eureka, which may stop a run."""
    return key == "callbacks" or (key.startswith("callbacks.") and not key.startswith("callbacks.eureka."))


def _curves(path: Path, summary: Summary, config: Mapping[str, Any]) -> NDArray[np.float32]:
    rows = read_metrics_table(path) if os.path.lexists(path) else None
    if rows is None or not len(rows):
        if summary.finished and summary.metrics:
            raise DamagedFile(path, f"holds no row, although {summary.steps:,} steps were trained")
        return np.empty((len(CURVES), 0), np.float32)  # a run that has logged nothing yet
    last = rows["epoch"].max() + 1
    # Metrics are logged with a validation and at the planned end: a run may end up to one cadence after its last row.
    if summary.finished and summary.epochs - last >= int(config.get(CADENCE) or 1):
        raise DamagedFile(path, f"ends at epoch {last:,.0f}, although {summary.epochs:,} epochs were trained")
    shown = {f"val/{quantity}": summary.eureka.drawn(quantity) for quantity in ("accuracy", "loss")}
    curves = rows.reindex(columns=[shown.get(name, name) for name in CURVES]).to_numpy(np.float32).T
    curves = curves[:, np.isfinite(curves[1:]).any(0)].copy()
    curves[0] += 1
    return curves
