"""The plain progress lines of a run: each says something new."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import train_in

REASONING = ("experiment=reasoning", "data.numbers=4", "logger=csv_only")


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("epoch ")]


def test_a_run_of_one_step_is_told_of_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_in(tmp_path, *REASONING, "trainer.max_epochs=1")
    (line,) = lines(capsys)
    assert line.startswith("epoch 1/1  step 1/1") and line.endswith("not validated yet")


def test_the_last_step_is_told_of_again_where_a_validation_came_after_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_in(tmp_path, *REASONING, "trainer.max_epochs=1", "trainer.check_val_every_n_epoch=1")
    first, last = lines(capsys)
    assert first.endswith("not validated yet")
    assert last.startswith("epoch 1/1  step 1/1") and "accuracy " in last and last.endswith("no Eureka-moment yet")


def test_there_is_a_line_for_every_step_where_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    often = "callbacks.progress.line_every_seconds=1e-6"
    train_in(tmp_path, *REASONING, "trainer.max_epochs=5", "trainer.check_val_every_n_epoch=2", often)
    told = [line.split("step ")[1].split("  ") for line in lines(capsys)]
    assert sorted({place for place, *_ in told}) == [f"{step}/5" for step in range(1, 6)]
    said = [(place, state) for place, *_, state in told]
    assert len(set(said)) == len(said)
    assert [state == "not validated yet" for _, state in said] == [True, True, *[False] * (len(said) - 2)]
