"""The search for a small setting: its points are runs that compose, and its table forgets none of them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from conftest import SMALL

from lab.config.command_line import problem_with
from lab.train import run as train
from scripts.search import main_task_small as search


@pytest.mark.parametrize("axis", search.AXES)
def test_every_value_of_every_axis_composes(axis: str) -> None:
    (point,) = search.points({}, 1)
    for value in search.AXES[axis]:
        assert problem_with(search.overrides({**point, axis: value}, minutes=1)) is None


def test_a_point_is_the_same_everywhere_and_kept_to_what_is_asked_for() -> None:
    only = {"lr": ["1e-3"], "task": ["main_task", "same_color"]}
    one, other = list(search.points(only, 20)), list(search.points(only, 30))
    assert one == other[:20]
    assert {point["lr"] for point in one} == {"1e-3"} and {point["task"] for point in one} == {
        "main_task",
        "same_color",
    }


def test_trials_stay_in_the_table_when_their_runs_are_gone(tmp_path: Path, one_thread) -> None:
    runs, out = tmp_path / "runs", tmp_path / "out"
    small = [*SMALL, "trainer.max_epochs=1", "callbacks=default", "threads=1", f"paths.runs={runs}"]
    train([one for one in small if one != "trainer.max_epochs=4"])
    search.write(runs, out, "command")
    (before,) = pd.read_csv(out / "trials.csv").to_dict("records")
    # Once more, with the same runs and with none.
    for folder in (runs, tmp_path / "elsewhere"):
        search.write(folder, out, "command")
        (after,) = pd.read_csv(out / "trials.csv").to_dict("records")
        assert after["run"] == before["run"] and after["best accuracy"] == before["best accuracy"]
    assert "| softmax" in (out / "trials.md").read_text()
