"""A Eureka-moment of a metric that falls, and change points, as summary, status and report tell them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import problem_with, summary_of, train_in, write_a_summary

from lab.callbacks.eureka import EurekaMoment
from lab.console import LabError
from lab.report.outcomes import compare, outcome
from lab.report.records import Record
from lab.report.settings import Setting
from lab.runs.summary import load_summary
from lab.sweeps.status import status_of

REASONING = ("experiment=reasoning", "data.numbers=4", "logger=csv_only", "trainer.check_val_every_n_epoch=1")
LOSS = "callbacks.eureka.metric=val/loss"


def watched(callback: EurekaMoment, values: list[float], prior_loss: float | None = None) -> EurekaMoment:
    """The callback after one validation an epoch, ten steps each."""
    data = SimpleNamespace(
        prior_accuracy=lambda: None, prior_loss=lambda: prior_loss, model_arguments=lambda: {"num_classes": 4},
        samples_per_batch=16,
    )  # fmt: skip
    trainer: Any = SimpleNamespace(
        datamodule=data,
        loggers=[],
        sanity_checking=False,
        current_epoch=0,
        global_step=0,
        accumulate_grad_batches=1,
        num_training_batches=10,
    )
    module: Any = SimpleNamespace()
    callback.on_fit_start(trainer, module)
    for epoch, value in enumerate(values):
        trainer.current_epoch, trainer.global_step = epoch, 10 * (epoch + 1)
        trainer.callback_metrics = {callback.metric: value}
        callback.on_validation_end(trainer, module)
    return callback


def test_a_loss_passes_its_threshold_from_above() -> None:
    nan = float("nan")
    found = watched(EurekaMoment(threshold=5.0, metric="val/loss"), [9.0, 6.5, nan, 6.4, 4.9, 6.0, 4.0])
    assert found.moment is not None and (found.moment.epoch, found.moment.step, found.moment.value) == (5, 50, 4.9)
    assert found.moment.accuracy is None
    assert watched(EurekaMoment(threshold=5.0, metric="val/loss"), [9.0, 6.5, nan]).moment is None
    assert watched(EurekaMoment(threshold=5.0, metric="val/perplexity", mode="min"), [9.0, 4.0]).moment is not None


def test_a_metric_at_its_threshold_has_not_passed_it() -> None:
    at = [torch.tensor(value).item() for value in (0.6, 0.8)]  # in float32 a little more than in float64
    for value, threshold in zip(at, (0.6, 0.8), strict=True):
        assert value > threshold and watched(EurekaMoment(threshold=threshold), [value]).moment is None
    assert watched(EurekaMoment(threshold=0.6), [0.6001]).moment is not None


def test_a_share_of_the_plateau_is_the_threshold(capsys: pytest.CaptureFixture[str]) -> None:
    callback = EurekaMoment(threshold=None, plateau_share=0.9, metric="val/loss")
    found = watched(callback, [6.0, 5.5, 5.3], prior_loss=6.0)
    assert found.threshold == pytest.approx(5.4) and found.moment is not None and found.moment.epoch == 3
    assert "no sign" not in capsys.readouterr().err
    watched(EurekaMoment(threshold=6.5, metric="val/loss"), [], prior_loss=6.0)
    assert "the prior p(z) alone reaches 6 on this task; set a lower one" in capsys.readouterr().err
    with pytest.raises(LabError, match="plateau of val/loss, which this data does not tell"):
        watched(EurekaMoment(threshold=None, plateau_share=0.9, metric="val/loss"), [])
    with pytest.raises(LabError, match="plateau of val/loss_c, which this data does not tell"):
        watched(EurekaMoment(threshold=None, plateau_share=0.9, metric="val/loss_c"), [], prior_loss=6.0)


def test_the_change_point_needs_no_threshold_and_outlives_a_resume() -> None:
    values = [6.0] * 20 + [4.0] * 20
    whole = watched(EurekaMoment(threshold=0.1, metric="val/loss"), values)
    assert whole.moment is None and whole.change is not None
    assert (whole.change.epoch, whole.change.step, whole.change.before, whole.change.after) == (21, 210, 6, 4)
    resumed = EurekaMoment(threshold=0.1, metric="val/loss")
    resumed.load_state_dict(whole.state_dict())
    assert resumed.change == whole.change
    assert watched(EurekaMoment(), [0.5] * 20 + [0.9] * 20).change is not None
    assert watched(EurekaMoment(), [0.9] * 20 + [0.5] * 20).change is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["callbacks.eureka.threshold=null"], "give one of callbacks.eureka.threshold"),
        (["callbacks.eureka.plateau_share=0.9"], "give one of callbacks.eureka.threshold"),
        (["callbacks.eureka.threshold=1.5"], "must be below 1"),
        (["callbacks.eureka.threshold=null", "callbacks.eureka.plateau_share=2"], "a threshold that is not below 1"),
        ([LOSS, "callbacks.eureka.threshold=null", "callbacks.eureka.plateau_share=0.9"], "does not tell"),
    ],
)
def test_a_threshold_that_cannot_be_is_refused_and_leaves_nothing(
    options: list[str], said: str, tmp_path: Path
) -> None:
    assert problem_with([*REASONING, *options]) is None
    with pytest.raises(LabError, match=said):
        train_in(tmp_path / "runs", *REASONING, *options)
    assert not (tmp_path / "runs").exists()


def test_a_run_that_watches_its_loss_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train_in(tmp_path, *REASONING, LOSS, "callbacks.eureka.threshold=2.5", "trainer.max_epochs=2")
    eureka = summary_of(run)["eureka"]
    assert eureka["happened"] and eureka["value"] < 2.5 and 0 <= eureka["accuracy"] <= 1
    assert (eureka["metric"], eureka["falls"], eureka["changed"], eureka["change"]) == ("val/loss", True, False, None)
    told = capsys.readouterr().err
    assert "  loss 1." in told and "validation loss 1." in str(load_summary(run))


def change(epoch: int | None) -> dict[str, Any]:
    found = {"epoch": epoch, "step": 10 * (epoch or 0), "before": 6.0, "after": 4.0, "strength": 0.97}
    return {"threshold": 0.7, "happened": False, "changed": epoch is not None, **({"change": found} if epoch else {})}


def test_status_and_report_tell_change_points_as_they_tell_moments(tmp_path: Path) -> None:
    def setting(name: str, epochs: list[int | None]) -> Setting:
        runs = []
        for seed, epoch in enumerate(epochs):
            folder = tmp_path / name / f"seed={seed}"
            write_a_summary(folder, seed=seed, softmax=name, epochs=40, eureka=change(epoch))
            assert status_of(folder).change == epoch
            runs.append(Record(folder, load_summary(folder), {}, np.empty((5, 0), np.float32)))
        return Setting(name, "own", name, {}, tuple(runs))

    early, late = setting("norm", [5, 6, 7, 8]), setting("softmax", [30, None, None, None])
    found = outcome(early)
    assert found.change_ratio is not None and (found.change_ratio.count, found.change_ratio.seeds) == (4, 4)
    assert found.change_median is not None and found.change_median.epoch == 6
    (against,) = compare([found], late)
    assert against.change_time is not None and against.change_time < 0.05 and against.time == 1
