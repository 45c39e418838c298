"""What a training step is made of: loss, rate, random numbers, temperature, time."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import set_status, train_in
from torch import nn

from lab.attention.layers import Attention
from lab.attention.rules.fixed import Fixed
from lab.attention.schedule import HeatTreatment
from lab.callbacks import checkpoints, throughput
from lab.callbacks.checkpoints import Checkpoints
from lab.callbacks.eureka import EurekaMoment
from lab.callbacks.guards import FiniteLoss
from lab.callbacks.summary import RunSummary
from lab.callbacks.throughput import Throughput
from lab.console import LabError
from lab.runs.checkpoints import Checkpoint, save_checkpoint
from lab.runs.summary import Summary, write_summary
from lab.train import run
from lab.training.length import tell_of_length
from lab.training.metrics import LossAndAccuracy
from lab.training.module import TwoStepModule
from lab.training.optim import OptimConfig
from lab.training.resume import check_resumable


def test_the_training_loss_is_smoothed() -> None:
    module = TwoStepModule(nn.Identity(), OptimConfig(lr=1e-3, label_smoothing=0.1), 3)
    logits, labels = torch.randn(5, 3), torch.arange(5) % 3
    torch.testing.assert_close(module.loss(logits, labels), F.cross_entropy(logits, labels, label_smoothing=0.1))


def test_each_place_in_training_has_random_numbers_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for seed, epoch, batch, rank in [*itertools.product((0, 1), repeat=4)] * 2:
        monkeypatch.setattr(TwoStepModule, "global_rank", rank)
        TwoStepModule(nn.Linear(1, 1), OptimConfig(lr=1.0), 2, seed=seed).seed_step(epoch, batch)
        seen.append((torch.rand(1).item(), random.random(), np.random.rand()))
    assert seen[:16] == seen[16:]
    assert [len({one[generator] for one in seen}) for generator in range(3)] == [16] * 3


def test_accumulated_batches_count_for_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    module = TwoStepModule(nn.Linear(1, 1), OptimConfig(lr=1e-3, lr_reference_batch=512, schedule="none"), 2)
    data = SimpleNamespace(samples_per_batch=64)
    plain = {"precision": "32-true", "gradient_clip_val": None, "max_epochs": 3}
    trainer = SimpleNamespace(datamodule=data, accumulate_grad_batches=4, **plain)
    monkeypatch.setattr(TwoStepModule, "trainer", trainer)
    configured: Any = module.configure_optimizers()
    optimizer = configured["optimizer"] if isinstance(configured, dict) else configured
    assert optimizer.param_groups[0]["lr"] == pytest.approx(5e-4)


@pytest.mark.parametrize(
    ("ragged", "together", "processes", "told"),
    [
        (True, 4, 1, "trainer.accumulate_grad_batches make"),
        (True, 1, 4, "several processes make"),
        (True, 2, 2, "trainer.accumulate_grad_batches or several processes make"),
        (True, 1, 1, None),
        (False, 4, 1, None),
        (False, 1, 4, None),
    ],
)
def test_batches_of_unequal_answers_are_no_larger_batch_together(ragged, together, processes, told, capsys) -> None:
    options = {"accumulate_grad_batches": together, "world_size": processes}
    tell_of_length(_of_length(**options, datamodule=SimpleNamespace(ignores=ragged)), by_epoch=False)
    said = capsys.readouterr().err
    assert ("each of the 4 batches of a step counts alike" in said) is (told is not None) is (str(told) in said)


def test_a_run_goes_on_with_as_many_processes_as_have_begun_it(tmp_path: Path) -> None:
    """Each takes its part of a batch and of an epoch: another number would train on other batches, without a word."""
    command = ["experiment=reasoning", "data.numbers=4", "checkpoints.every_n_steps=1", "logger=csv_only", "threads=1"]
    begun = [*command, "trainer.max_epochs=4", f"paths.runs={tmp_path}"]
    run(begun)
    (folder,) = (path.parent for path in tmp_path.rglob("summary.json"))
    newest = max(folder.glob("checkpoints/last-*.ckpt"))
    content = torch.load(newest, weights_only=True)
    assert content["processes"] == 1
    save_checkpoint({**content, "processes": 2}, newest)
    set_status(folder, "running")
    with pytest.raises(LabError, match=r"last-\d+\.ckpt was trained by 2 processes, and 1 would go on"):
        run(begun)
    save_checkpoint({**content, "processes": 1}, newest)
    run(begun)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"min_steps": 24}, ""),
        ({"min_steps": 25}, "trainer.min_steps=25 does nothing: training ends before, after 24 steps"),
        ({"min_steps": 25, "max_epochs": -1}, ""),
        ({"min_epochs": 3}, ""),
        ({"min_epochs": 4}, "trainer.min_epochs=4 does nothing: training ends before, after 24 steps"),
        ({"min_epochs": 2, "max_steps": 9}, "trainer.min_epochs=2 does nothing: training ends before, after 9 steps"),
    ],
)
def test_a_least_length_above_the_greatest_is_told(options: dict[str, int], told: str, capsys) -> None:
    tell_of_length(_of_length(**options), by_epoch=False)
    said = capsys.readouterr().err
    assert told in said
    assert bool(told) is ("does nothing" in said)


@pytest.mark.parametrize(("options", "told"), [({}, False), ({"max_epochs": 2}, True), ({"max_steps": 16}, True)])
def test_training_that_ends_within_its_warm_up_is_told(options: dict[str, int], told: bool, capsys) -> None:
    tell_of_length(_of_length(**options), by_epoch=True, warmup_epochs=2)
    assert ("ends within its warm-up of optim.warmup_epochs=2" in capsys.readouterr().err) is told


def _of_length(**options: Any) -> Any:
    """A trainer of three epochs of eight steps, but for these options."""
    usual = {"num_training_batches": 8, "accumulate_grad_batches": 1, "max_epochs": 3, "max_steps": -1, "world_size": 1}
    none = dict.fromkeys(("min_epochs", "min_steps", "check_val_every_n_epoch", "datamodule"))
    return SimpleNamespace(**{**usual, **none, "lr_scheduler_configs": [], **options})


@pytest.mark.parametrize("ignored", [None, -100])
def test_a_mean_loss_is_over_answers_and_not_over_batches(ignored: int | None) -> None:
    metrics = LossAndAccuracy(3, ignored=ignored)
    # The mean loss of a batch in which nothing counts is NaN.
    for count, loss in ((3, 1.0), (1, 5.0), *([(0, math.nan)] if ignored else [])):
        size = 4 if ignored else count
        target = torch.full((size,), -100)
        target[:count] = 0
        metrics.update(logits=torch.zeros(size, 3), target=target, loss=torch.tensor(loss))
    assert metrics.compute()["loss"].item() == 2


def test_a_schedule_by_step_goes_by_the_steps_of_the_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = HeatTreatment(1.0, 5.0, 1.0, "linear", "temperature", "step")
    attention = Attention(8, 2, Fixed(2, 4))
    module = TwoStepModule(attention, OptimConfig(lr=1.0), 2, schedule=schedule)
    optimizers = [SimpleNamespace(param_groups=[{"lr": 1.0}])]
    trainer = SimpleNamespace(estimated_stepping_batches=100, max_epochs=10, optimizers=optimizers)
    for name, value in {"trainer": trainer, "global_step": 25, "current_epoch": 2, "global_rank": 0}.items():
        monkeypatch.setattr(TwoStepModule, name, value)
    module.on_train_batch_start({"x": None, "y": torch.zeros(1), "latents": {}}, 5)
    assert attention.rule.tau.item() == pytest.approx(2)


def test_the_best_accuracy_is_the_highest(tmp_path: Path) -> None:
    callback = Checkpoints(tmp_path)
    callback.best_value = 0.5
    assert callback._is_better(0.6) and not callback._is_better(0.4)
    summary = RunSummary(tmp_path, Summary(status="running", seed=0, softmax="softmax"))
    for epoch, accuracy in enumerate((math.nan, 0.5, 0.9, math.nan, 0.7)):
        metrics = {"val/accuracy": torch.tensor(accuracy)}
        trainer: Any = SimpleNamespace(
            callback_metrics=metrics,
            callbacks=[],
            sanity_checking=False,
            current_epoch=epoch,
            loggers=[],
            global_step=1,
        )
        summary.on_validation_end(trainer, None)  # type: ignore[arg-type]
    assert summary._best == {"accuracy": pytest.approx(0.9), "epoch": 3}


def test_a_killed_run_has_told_that_it_was_watched_and_its_moment(tmp_path: Path, monkeypatch) -> None:
    """The summary is written after the first validation and the moment, however soon they come."""
    told = []

    def note(folder: Path, summary: Summary) -> None:
        told.append((summary.epochs, summary.eureka.happened, summary.eureka.epoch))
        write_summary(folder, summary)

    monkeypatch.setattr("lab.callbacks.summary.write_summary", note)
    monkeypatch.setattr(EurekaMoment, "_passes", lambda self, value: len(self._curve) == 3)
    short = ("data.numbers=4", "trainer.check_val_every_n_epoch=2", "trainer.max_epochs=8", "logger=csv_only")
    train_in(tmp_path, "experiment=reasoning", *short)
    assert told == [(0, None, None), (2, False, None), (6, True, 6), *[(8, True, 6)] * 2]


def test_checkpoints_go_by_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(checkpoints, "time", SimpleNamespace(monotonic=lambda: now))
    callback, trainer = Checkpoints(tmp_path, every_minutes=5.0), SimpleNamespace(world_size=1, global_step=3)
    now = 299
    assert not callback.due(trainer)  # type: ignore[arg-type]
    now = 301
    assert callback.due(trainer)  # type: ignore[arg-type]


def test_the_time_before_an_interruption_counts(tmp_path: Path) -> None:
    summary = RunSummary(tmp_path, Summary(status="running", seed=0, softmax="softmax"))
    summary.load_state_dict({"seconds": 100.0, "best": None, "metrics": {}})
    moment = EurekaMoment()
    moment.load_state_dict({"moment": None, "wall_seconds": 100.0, "curve": []})
    assert summary._seconds == 100 and moment.wall_seconds is not None and moment.wall_seconds >= 100


@pytest.mark.parametrize("together", [1, 2])
def test_validations_do_not_count_as_training_time(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now, logged = 0.0, []
    monkeypatch.setattr(throughput, "time", SimpleNamespace(perf_counter=lambda: now))
    callback = Throughput(every_n_steps=2)
    logger = SimpleNamespace(log_metrics=lambda values, step: logged.append(values["samples_per_second"]))
    trainer: Any = SimpleNamespace(
        global_step=0,
        current_epoch=0,
        accumulate_grad_batches=together,
        num_training_batches=20,
        is_last_batch=False,
        datamodule=SimpleNamespace(samples_per_batch=16),
        loggers=[logger],
    )
    nothing: Any = None
    for batch in range(7 * together):
        now += 1
        trainer.global_step = (batch + 1) // together
        if batch == 2:
            callback.on_validation_start(trainer, nothing)
            now += 100
            callback.on_validation_end(trainer, nothing)
        callback.on_train_batch_end(trainer, nothing, nothing, nothing, batch)
    assert logged == [16.0] * 3


def test_an_infinite_loss_ends_a_run() -> None:
    guard = FiniteLoss()
    strategy = SimpleNamespace(all_gather=lambda losses: losses)
    trainer: Any = SimpleNamespace(strategy=strategy, lightning_module=SimpleNamespace(model=nn.Linear(1, 1)))
    guard._trainer = trainer
    guard._losses = [(1, 0, torch.tensor(math.inf))]
    with pytest.raises(LabError, match="the loss is inf at step 1"):
        guard._check()


def test_data_that_differ_by_more_than_rounding_are_other_data() -> None:
    module = nn.Linear(2, 2)
    whole: dict[str, Any] = {
        "state_dict": module.state_dict(),
        "optimizer_states": [{"param_groups": [{}]}],
        "callbacks": {"a": {}},
        "loops": {"b": {}},
    }
    print_of_data = torch.tensor([[0.5, 3.0]], dtype=torch.float64)
    data: Any = SimpleNamespace(setup=lambda stage: None, fingerprint=print_of_data)
    rounded, other = (
        Checkpoint(Path("last.ckpt"), {**whole, "data_fingerprint": print_of_data * factor}, 1)
        for factor in (1 + 1e-6, 1.02)
    )
    check_resumable(rounded, module, data)
    # An older checkpoint knows the batch of validation alone, the first rows.
    data.fingerprint = torch.cat([print_of_data, 7 * print_of_data])
    check_resumable(rounded, module, data)
    with pytest.raises(LabError, match="was trained on other data"):
        check_resumable(other, module, data)
