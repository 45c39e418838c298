"""Keeps ``summary.json`` up to date while a run trains: the file that reports read."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only

from lab.callbacks.access import callbacks_of
from lab.callbacks.eureka import EurekaMoment, find_moment
from lab.callbacks.guards import FiniteLoss
from lab.callbacks.progress import EurekaProgress
from lab.callbacks.throughput import Throughput, samples_seen
from lab.console import LabError, Unfinished, first_line, tell
from lab.files import is_full
from lab.runs.boards import boards
from lab.runs.peak import forget_peak, peak_memory
from lab.runs.provenance import now
from lab.runs.summary import VERSION, Best, Eureka, Status, Summary, read_summary, write_summary

# Time between two writes while training: a share of the time so far, from 2 s to half a minute. What a kill leaves is
# not far behind, and a short run can be watched.
_SHARE, _LEAST_SECONDS, _MOST_SECONDS = 0.1, 2.0, 30.0


class RunSummary(Callback):
    """Writes the summary atomically at the start, while training and at the end, however the run ends.

    Args:
        folder: the run folder.
        what: the summary's fixed fields (experiment, softmax, seed, overrides, command, ...).
    """

    def __init__(self, folder: Path, what: Summary) -> None:
        self.folder = folder
        self.what = what.model_copy(update={"version": VERSION, "started": now()})
        self._seconds_before = 0.0
        self._clock = 0.0
        self._written = -math.inf
        self._took = 0.0  # the last write, in seconds
        self._happened: bool | None = None
        self._best: dict[str, Any] | None = None
        self._trainer: L.Trainer | None = None
        self._restored: dict[str, float] = {}
        # A start that fails before the checkpoint is read must not overwrite the progress recorded here.
        self._before = read_summary(folder)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # The runs of a sweep follow one another in one process, and each has its own peak.
        for device in _devices().values():
            forget_peak(device)
        # Before any callback looks at the model: the whole takes no less time than the way to the moment.
        self._clock = time.monotonic()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._trainer = trainer
        self.write(trainer, "running")

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        due = min(max(_LEAST_SECONDS, _SHARE * self._seconds), _MOST_SECONDS)
        # With many seeds, or a slow disk, writing takes a fiftieth of the time at most.
        due = max(due, 50 * self._took * (self.what.seeds_together or 1))
        if time.monotonic() - self._written > due:
            self.write(trainer, "running")

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # NaN for a validation that scores nothing.
        accuracy = float(trainer.callback_metrics.get("val/accuracy", math.nan))
        if math.isnan(accuracy) or trainer.sanity_checking:
            return
        if self._best is None or accuracy > self._best["accuracy"]:
            self._best = {"accuracy": accuracy, "epoch": trainer.current_epoch + 1}
        for board in boards(trainer):
            board.log_metrics({"accuracy/best": self._best["accuracy"]}, max(0, trainer.global_step - 1))

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # After the first validation and the moment: a run that is killed has been watched, and keeps its moment. Not at
        # the validation itself, which comes before its epoch is counted.
        if (eureka := find_moment(callbacks_of(trainer))) is not None and eureka.happened != self._happened:
            self._happened = eureka.happened
            self.write(trainer, "running")

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.write(trainer, "running")

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self._seconds, "best": self._best, "metrics": self._metrics(self._trainer)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._seconds_before = state_dict["seconds"]
        self._best = state_dict["best"]
        self._restored = state_dict["metrics"]

    @property
    def _seconds(self) -> float:
        # What loading takes is no training time, if there is nothing left to train.
        return self._seconds_before + (time.monotonic() - self._clock if self._trainer is not None else 0.0)

    def _metrics(self, trainer: L.Trainer | None) -> dict[str, float]:
        """The newest value of every logged metric, including values from before an interruption."""
        newest = {name: float(value) for name, value in trainer.callback_metrics.items()} if trainer else {}
        return dict(sorted({**self._restored, **newest}.items()))

    @rank_zero_only
    def write(self, trainer: L.Trainer | None, status: Status, error: str | None = None, pruned: bool = False) -> None:
        """Writes the summary now; ``trainer`` is None for a run that failed before it had one."""
        self._written = time.monotonic()
        told: dict[str, Any] = {"status": status, "written": now()}
        # Once a search has given the run up, this is known of it until it is trained to its end after all.
        given_up = self._before is not None and self._before.pruned
        told["pruned"] = status != "finished" and (pruned or given_up)
        if trainer is not None:
            told |= self._progress(trainer)
        if self._before is not None and self._trainer is None and (trainer is None or trainer.global_step == 0):
            own = {*self.what.model_fields_set, "status", "written", "pruned", "error"}
            told |= {name: getattr(self._before, name) for name in self._before.model_fields_set - own}
        if status != "running":
            told["seconds_left"] = None
        if error is not None:
            told["error"] = error
        try:
            write_summary(self.folder, self.what.model_copy(update=told))
            self._took = time.monotonic() - self._written
        except (OSError, LabError) as lost:
            if status == "running":
                raise
            # What ended the run is told, and no second error in its place, as of a folder that cannot be written.
            if status == "finished" and not is_full(lost):
                raise Unfinished(
                    f"the run has come to its end, but its summary cannot be written ({first_line(lost)}): mend this "
                    "and give the same command again"
                ) from lost
            tell(f"{self.folder}: its summary cannot be written ({first_line(lost)})")

    def _progress(self, trainer: L.Trainer) -> dict[str, Any]:
        callbacks = callbacks_of(trainer)
        diverged = any(isinstance(one, FiniteLoss) and one.diverged for one in callbacks)
        # Any, since Lightning's type lacks the attribute ``processed``.
        epochs: Any = trainer.fit_loop.epoch_progress.current
        return {
            # Not current_epoch, which is one too low if the run that is resumed had ended by trainer.max_steps.
            "epochs": epochs.processed,
            "max_epochs": trainer.max_epochs,
            "steps": trainer.global_step,
            "samples": samples_seen(trainer),
            "wall_seconds": round(self._seconds, 3),
            "samples_per_second": next((c.samples_per_second for c in callbacks if isinstance(c, Throughput)), None),
            "seconds_left": next((c.seconds_left(trainer) for c in callbacks if isinstance(c, EurekaProgress)), None),
            "eureka": _found(find_moment(callbacks), diverged),
            "diverged": diverged,
            "best": Best(**self._best) if self._best else None,
            # JSON has no NaN and no infinity.
            "metrics": {k: v if math.isfinite(v) else None for k, v in self._metrics(trainer).items()},
            "peak_memory_bytes": {name: peak_memory(device) for name, device in _devices().items()},
        }


def _found(eureka: EurekaMoment | None, diverged: bool) -> Eureka:
    # A loss that diverged has no moment, although no validation says so.
    if eureka is None or not (eureka.validated or diverged):
        # Unknown, since no callback has looked for a Eureka-moment.
        return Eureka(happened=None, threshold=None)
    return Eureka(
        happened=eureka.moment is not None,
        metric=eureka.metric,
        falls=eureka.falls,
        threshold=eureka.threshold,
        prior_accuracy=eureka.prior_accuracy,
        prior_loss=eureka.prior_loss,
        changed=eureka.change is not None if eureka.validated else None,
        change=eureka.change,
        **(asdict(eureka.moment) if eureka.moment else {}),
    )


def _devices() -> dict[str, str]:
    """Devices whose memory is counted, by their names in the summary: a GPU only where this process uses one."""
    # To ask a GPU that no one uses for its memory would open it, which takes memory there.
    return {"host": "cpu"} | ({"device": "cuda"} if torch.cuda.is_initialized() else {})
