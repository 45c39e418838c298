"""Callbacks chosen in place of the experiment's own: a run says that nobody looks for a Eureka-moment."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import summary_of, train_in

from lab.report.gather import gather
from lab.runs.summary import load_summary
from lab.train import run
from lab.training.build import _own_callbacks

SHORT = ("data.numbers=4", "trainer.max_epochs=2", "trainer.check_val_every_n_epoch=1", "logger=csv_only")
SETS = (
    "data.epoch_steps=2",
    "data.batch_size=8",
    "data.validation_size=8",
    "model.width=8",
    "trainer.max_epochs=2",
    "logger=csv_only",
)
NOBODY = "no Eureka-moment is looked for"


@pytest.mark.parametrize(
    ("chosen", "instead"),
    [
        (["experiment=reasoning", "callbacks=attention_entropy", *SHORT], "'callbacks=[reasoning,attention_entropy]'"),
        (["experiment=reasoning", "callbacks=[progress,temperatures]", *SHORT], "'callbacks=[reasoning]'"),
        (["experiment=reasoning_small", "callbacks=gradient_norms", *SHORT], "'callbacks=[reasoning]'"),
        (
            ["experiment=max_retrieval", "callbacks=[logit_spread,temperature_in_use]", *SETS],
            "'callbacks=[max_retrieval,logit_spread,temperature_in_use]'",
        ),
        (
            ["experiment=reasoning", "seeds=2", "callbacks=attention_maps", *SHORT],
            "'callbacks=[reasoning,attention_maps]'",
        ),
    ],
    ids=["one", "no diagnostic", "derived", "list", "seeds"],
)
def test_a_run_without_it_says_so_once_and_how_it_is_had(
    tmp_path: Path, chosen: list[str], instead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run([*chosen, f"paths.runs={tmp_path}", "threads=1"])
    told = [line for line in capsys.readouterr().err.splitlines() if NOBODY in line]
    assert len(told) == 1 and instead in told[0]
    for path in tmp_path.rglob("summary.json"):
        summary = summary_of(path.parent)
        assert summary["status"] == "finished"
        assert summary["eureka"]["happened"] is None and summary["eureka"]["threshold"] is None
        assert "Eureka" not in str(load_summary(path.parent))
    if chosen[0] != "experiment=reasoning_small":  # derived from another: its advice is tried
        return
    again = [word if not word.startswith("callbacks=") else instead.strip("'") for word in chosen]
    run([*again, f"paths.runs={tmp_path / 'again'}", "threads=1"])
    assert NOBODY not in capsys.readouterr().err
    for path in (tmp_path / "again").rglob("summary.json"):
        assert summary_of(path.parent)["eureka"]["happened"] is False


def test_of_an_experiment_that_is_not_the_labs_nothing_is_guessed() -> None:
    assert _own_callbacks("reasoning_small") == ["reasoning"] and _own_callbacks(None) == ["default"]
    assert _own_callbacks("mine") == []


def test_such_a_run_is_no_run_without_a_moment_in_a_report(tmp_path: Path) -> None:
    train_in(tmp_path, "experiment=reasoning", "callbacks=attention_entropy", *SHORT)
    (record,) = gather(tmp_path).runs
    assert record.moment is None and not record.watched_for


def test_nor_is_one_that_ends_before_its_first_validation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_in(tmp_path, "experiment=reasoning", *SHORT[:2], "trainer.check_val_every_n_epoch=10", "logger=csv_only")
    assert "the first validation would come at epoch 10, and the run ends at 2" in capsys.readouterr().err
    (record,) = gather(tmp_path).runs
    assert record.moment is None and not record.watched_for
