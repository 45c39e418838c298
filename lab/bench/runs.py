"""Measures an epoch of a real run, with Lightning, validation and files: of one seed, and of several together."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

import lightning as L
from omegaconf import DictConfig, OmegaConf

from lab.bench.cases import Case
from lab.bench.softmaxes import composed_of
from lab.config.compose import compose_config
from lab.runs.spec import RunSpec
from lab.training.fit import train

# The first epochs compile, for training and for evaluation (validation is every ten epochs), and are not timed.
WARM_UP_EPOCHS, EPOCHS, QUICK_EPOCHS = 20, 200, 20
ROUNDS = 3


class EpochClock(L.Callback):
    """Notes when each epoch begins."""

    began: ClassVar[dict[int, float]] = {}

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.began.setdefault(trainer.current_epoch, time.perf_counter())


def time_of_runs(case: Case, seeds: int) -> tuple[list[float], list[float]]:
    """Seconds of an epoch of the reasoning task: of one seed's run, and of ``seeds`` together; one pair per round."""
    epochs = QUICK_EPOCHS if case.quick else EPOCHS
    one: list[float] = []
    many: list[float] = []
    for number in range(1 if case.quick else ROUNDS):
        turns = [(one, None), (many, seeds)]
        for times, together in reversed(turns) if number % 2 else turns:
            with TemporaryDirectory() as folder:
                times.append(_seconds_an_epoch(case, together, epochs, Path(folder)))
    return one, many


def _seconds_an_epoch(case: Case, seeds: int | None, epochs: int, folder: Path) -> float:
    softmax, *options = composed_of(case.softmax)
    overrides = ["experiment=reasoning", f"softmax={softmax}", *options, "logger=csv_only", "~callbacks.progress"]
    # In the precision of the steps that the other cases of this group time.
    overrides += ["trainer=gpu", "trainer.precision=32-true"] if case.device == "cuda" else []
    changes = {
        "seeds": seeds,
        "threads": case.threads,
        "compile": case.mode == "compile",
        "trainer": {"max_epochs": WARM_UP_EPOCHS + epochs + 1},
        "paths": {"runs": str(folder)},
        "callbacks": {"clock": {"_target_": f"{__name__}.{EpochClock.__name__}"}},
    }
    config = OmegaConf.merge(OmegaConf.to_container(compose_config(overrides)), changes)
    assert isinstance(config, DictConfig)
    EpochClock.began.clear()
    train(RunSpec.of(config, overrides, {"experiment": "reasoning", "softmax": softmax}))
    first, last = WARM_UP_EPOCHS, WARM_UP_EPOCHS + epochs
    return (EpochClock.began[last] - EpochClock.began[first]) / epochs
