"""Rows of a published table find their runs, and are compared only where the runs are comparable."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from report_runs import EPOCHS, figure_8_beside

from lab.console import LabError
from lab.report import against
from lab.report.against import MatchedRow, set_beside
from lab.report.figures import (
    rate_grid,
)
from lab.report.gather import gather
from lab.report.published import load
from lab.report.settings import Setting, planned, settings


def test_rows_of_a_table_find_their_runs(write, tmp_path: Path) -> None:
    for seed in range(5):
        write(seed, None if seed else 12, "optim.lr=2e-3", watched=10_000)
        write(seed, 12, softmax="norm_softmax")
    write(0, 12, "optim.lr=1e-3", softmax="norm_softmax")
    rows = figure_8_beside(tmp_path)
    plain, heated, ours = rows["Softmax"], rows["Softmax + HT"], rows["NormSoftmax"]
    assert plain.cells["eureka_ratio"].text.startswith("1/5") and plain.cells["eureka_ratio"].inside
    assert plain.differences == {} and not plain.cells["eureka_ratio"].unlike  # the learning rate is free
    assert heated.settings == () and heated.cells["eureka_ratio"].text == ""
    assert ours.cells["eureka_ratio"].text.startswith("5/5") and len(ours.others) == 1
    # Fisher 1/5 against 3/5 is 0.52, doubled for two ratios and at most 1.
    assert plain.cells["eureka_ratio"].p == 1.0


def test_what_is_not_comparable_has_no_verdict(write, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(against, "planned", cache(planned))
    for seed in range(3):
        write(seed, 12)
    (whole,) = settings(gather(tmp_path).runs)
    fewer = replace(whole, name="fewer", runs=whole.runs[:1])

    def beside(*found: Setting) -> MatchedRow:
        return set_beside(load("eureka/figure_8"), found)[0]

    for key, value, told in (
        ("trainer.max_epochs", 300, "300 of 10,000 epochs"),
        ("trainer.max_epochs", 20_000, "20,000 epochs instead of 10,000"),
        ("model.layer_norm", False, "model.layer_norm is False instead of True"),
        ("data.train_share", 0.5, "data.train_share is 0.5 instead of 0.3"),
        ("optim.weight_decay", 0, "optim.weight_decay is 0 instead of 1.0"),
        ("callbacks.eureka.threshold", 0.8, "callbacks.eureka.threshold is 0.8 instead of 0.7"),
    ):
        other = replace(whole, config={**whole.config, key: value})
        row = beside(other)
        cell = row.cells["eureka_ratio"]
        assert (cell.text[:3], cell.inside, cell.p, cell.unlike) == ("3/3", None, None, told)
        assert list(row.differences) == [key]
        # One that is comparable takes its place, though it has fewer seeds.
        assert beside(other, fewer).settings == (fewer,)
    # How it is run is no difference that counts, nor an option that is younger than the run.
    config = {**whole.config, "compile": True, "trainer.precision": "bf16-mixed"}
    del config["model.layer_norm"]
    cell = beside(replace(whole, config=config)).cells["eureka_ratio"]
    assert cell.text.startswith("3/3") and cell.inside and not cell.unlike


def test_the_accuracy_of_runs_that_stop_after_their_moment_is_not_the_papers(write, tmp_path: Path) -> None:
    for seed in range(3):
        write(seed, 12, "+row=vit", "callbacks.eureka.stop_after=5", experiment="same_color")
    found = set_beside(load("eureka/table_8"), settings(gather(tmp_path).runs))
    (row,) = [row for row in found if row.settings]
    assert row.cells["accuracy"].unlike == "stopped 5 epochs after the moment"
    assert not row.cells["eureka_ratio"].unlike and row.cells["eureka_ratio"].inside is not None


def test_the_accuracy_of_runs_that_ended_early_is_not_the_papers(write, tmp_path: Path) -> None:
    for seed in range(3):
        write(seed, 12, "+row=vit", experiment="same_color", epochs=EPOCHS - seed)
    (row,) = [r for r in set_beside(load("eureka/table_8"), settings(gather(tmp_path).runs)) if r.settings]
    assert row.cells["accuracy"].unlike == f"a run ended early, at epoch {EPOCHS - 2}"
    assert row.cells["accuracy"].inside is None and row.cells["eureka_ratio"].inside is not None


def test_another_task_or_softmax_is_no_row(write, tmp_path: Path) -> None:
    write(0, 12, "+row=vit", experiment="main_task")
    write(0, 12, "+row=vit", "data/task=same_color", "trainer.max_epochs=40", experiment="main_task")
    write(0, 12, "+row=vit", "softmax.tau=0.5", "trainer.max_epochs=3000", experiment="main_task")
    found = settings(gather(tmp_path).runs)
    (plain, *others) = set_beside(load("eureka/table_8"), found)
    assert [setting.config["data.task._target_"] for setting in plain.settings] == [
        "lab.datasets.tasks.same_color.SameColor"
    ]
    assert not plain.others and not any(row.settings for row in others)
    with pytest.raises(LabError, match="no run has the settings of a row of eureka/section_5_3"):
        set_beside(load("eureka/section_5_3"), [setting for setting in found if "tau" in setting.name])


def test_a_table_over_all_schedules_pools_them(write, tmp_path: Path) -> None:
    main = {"experiment": "main_task", "softmax": "softmax"}
    for seed in range(4):
        write(seed, 12, "+row=vit", "optim/lr=max_1e-3_min_1e-5", **main)
        write(seed, None, "+row=vit", "optim/lr=max_1e-4_min_1e-6", watched=300, **main)
    found = settings(gather(tmp_path).runs)
    assert len(found) == 2
    table = load("eureka/table_2")
    (plain, *_) = set_beside(replace(table, pool=2), found)
    cell = plain.cells["eureka_ratio"]
    assert cell.text.startswith("4/8") and cell.inside is False and not cell.unlike
    (plain, *_) = set_beside(table, found)
    cell = plain.cells["eureka_ratio"]
    assert (cell.text[:3], cell.inside, cell.p, cell.unlike) == ("4/8", None, None, "2 of 9 pooled settings")
    grid, rates = rate_grid(found)
    assert grid == {"vit": {(1e-3, 1e-5): (4, 4), (1e-4, 1e-6): (0, 4)}} and rates == [(1e-3, 1e-5), (1e-4, 1e-6)]
