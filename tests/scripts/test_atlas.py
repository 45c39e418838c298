"""The atlas in small: it trains what is missing, keeps what is whole, and says what was not run."""

from __future__ import annotations

import runpy
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from lab.config.compose import CONFIGS, compose_config
from lab.console import LabError
from lab.runs.summary import Summary, write_summary
from lab.sweeps.record import planned_runs
from scripts.atlas import columns, cost, page, retrieval
from scripts.atlas.rows import FIRST, Row, all_rows
from scripts.reproduce import reasoning_setups, seeds
from scripts.reproduce.kept import FILE, Kept

SMALL = ("data.numbers=4", "trainer.max_epochs=4", "trainer.check_val_every_n_epoch=2", "callbacks.eureka.stop_after=1")


@pytest.fixture
def atlas(monkeypatch, capsys, trained_here):
    """Runs the command, its trainings in this process."""
    small = replace(columns.COLUMNS[0], options=SMALL, rates=("1e-3", "2e-3"), seeds=2)
    monkeypatch.setattr(columns, "COLUMNS", (small,))
    monkeypatch.setattr(cost, "_ROUNDS", 3)

    def typed(*arguments: str) -> tuple[str, list[list[str]]]:
        trained_here.clear()
        monkeypatch.setattr(sys, "argv", ["atlas", "--no-compile", *arguments])
        runpy.run_module("scripts.atlas", run_name="__main__", alter_sys=False)
        return capsys.readouterr().out, list(trained_here)

    return typed


@pytest.mark.pictures
def test_the_command_trains_what_is_missing_and_writes_its_page(tmp_path: Path, atlas) -> None:
    places = ("--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--only", "reasoning")
    two = (*places, "--softmax", "softmax", "--softmax", "softmax softmax.tau=1")
    told, trained = atlas(*two, "--plan")
    assert (
        not (tmp_path / "out").exists()
        and told.count("missing") == 2
        and not trained
        and not (tmp_path / "runs").exists()
    )
    _, trained = atlas(*two)
    # Two softmaxes, each with two rates on seed 0 and both seeds at the rate chosen.
    assert len(trained) == 6 and sum("seeds=[0,1]" in overrides for overrides in trained) == 2
    text = (tmp_path / "out/README.md").read_text()
    rows = [line for line in text.splitlines() if "0/2" in line]
    assert [row.split("|")[1].strip() for row in rows] == ["softmax", "softmax, tau=1"]
    assert "Not run yet, or not whole: norm_softmax, heat_treatment" in text and "| not run" in text
    assert (tmp_path / "out/reasoning.png").stat().st_size > 1000
    # The runs are gone, and what was whole still stands: nothing of it is trained again.
    shutil.rmtree(tmp_path / "runs")
    told, trained = atlas(*two)
    assert not trained and (tmp_path / "out/README.md").read_text() == text
    # Compiled runs have a page of their own.
    with pytest.raises(SystemExit):
        atlas(*two, "--compile", "--page")
    assert (tmp_path / "out/README.md").read_text() == text
    kept = (tmp_path / "out" / FILE).read_text()
    assert str(tmp_path) not in kept and len(kept.splitlines()) == 8


def test_a_softmax_that_fails_at_every_rate_is_told_and_not_trained_again(tmp_path: Path, monkeypatch) -> None:
    cell = columns.Cell(columns.COLUMNS[0], Row("softmax"), tmp_path, Kept(tmp_path / FILE))
    monkeypatch.setattr(seeds, "train", lambda *_: pytest.fail("it was trained again"))
    for rate in cell.column.rates:
        assert not cell.fails and not cell.whole
        folder = cell.trial(rate).folder(0)
        folder.mkdir(parents=True)
        write_summary(folder, Summary(status="failed", seed=0, softmax="softmax"))
        assert not cell.rate and not cell.fails, "a full disk says nothing of a softmax"
        write_summary(folder, Summary(status="failed", seed=0, softmax="softmax", diverged=True))
    assert cell.fails and cell.whole and cell.outcome() is None and len(cell.ends()) == 3
    cell.train()
    assert page.table(cell.column, [cell], tmp_path).iloc[0, 1] == "fails at every rate"


def test_without_a_rate_no_seeds_are_trained(tmp_path: Path, monkeypatch) -> None:
    cell, trained = columns.Cell(columns.COLUMNS[0], Row("softmax"), tmp_path, Kept(tmp_path / FILE)), list[str]()
    monkeypatch.setattr(seeds, "train", lambda typed, _: trained.append(typed[-1]) or False)
    cell.train()
    assert trained == ["seed=0"] * len(cell.column.rates)


def test_the_sweep_makes_the_runs_of_the_reasoning_column_and_each_is_a_trial_of_its_rate(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs, folders = planned_runs(["+sweep=atlas"])
    column, kept = columns.COLUMNS[0], Kept(tmp_path / FILE)
    cells = [columns.Cell(column, row, tmp_path / "runs/atlas", kept) for row in all_rows() if " " not in row.typed]
    named = {cell.all(rate).folder(seed) for cell in cells for rate in column.rates for seed in range(column.seeds)}
    assert runs == tmp_path / "runs/atlas/reasoning/seeds" and {*folders} == named

    def run(seed: int, rate: str, moment: int | None) -> None:
        folder = cells[0].all(rate).folder(seed)
        folder.mkdir(parents=True, exist_ok=True)
        eureka = {"threshold": 0.7, "happened": moment is not None, "epoch": moment}
        told = {"status": "finished", "seed": seed, "softmax": cells[0].row.softmax, "epochs": 300, "eureka": eureka}
        write_summary(folder, Summary.model_validate(told))

    for rate, moment in zip(column.rates, (None, 90, 120), strict=True):
        assert cells[0].rate is None
        run(0, rate, moment)
    assert cells[0].rate == column.rates[1] and not cells[0].whole
    for seed in range(column.seeds):
        run(seed, column.rates[1], 90)
    assert cells[0].whole and len(cells[0].ends()) == column.seeds + 2
    kept.keep(cells[0].ends())
    gone = replace(cells[0], runs=tmp_path / "gone", kept=Kept(tmp_path / FILE))
    assert gone.whole and gone.rate == column.rates[1]


def test_kept_summaries_are_data_and_a_damaged_line_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"run": "softmax=softmax"}\n')
    with pytest.raises(LabError, match="line 1 holds no run and summary"):
        Kept(tmp_path / FILE)


def test_what_another_process_keeps_meanwhile_stays(tmp_path: Path) -> None:
    summary = Summary.model_validate({"status": "finished", "seed": 0, "softmax": "softmax", "epochs": 7})
    one, other = Kept(tmp_path / FILE), Kept(tmp_path / FILE)
    one.keep({"one": summary})
    other.keep({"other": summary})
    assert sorted(Kept(tmp_path / FILE).runs()) == ["one", "other"]


def test_every_softmax_has_a_row_and_every_row_composes() -> None:
    rows = all_rows()
    assert {path.stem for path in (CONFIGS / "softmax").glob("*.yaml")} <= {row.typed for row in rows}
    assert {*FIRST, *retrieval.TRAINED} <= {row.typed for row in rows}
    for row in rows:
        compose_config(["experiment=reasoning", *row.overrides])
    assert str(Row("softmax softmax.tau=1")) == "softmax, tau=1"
    for column in columns.COLUMNS:
        assert all(typed in {row.typed for row in rows} for typed in column.rows)


def test_what_learns_nothing_is_put_on_the_trained_baseline() -> None:
    found = retrieval.swapped()
    assert {"adaptive_temperature", "hard", "sparsemax", "norm_softmax softmax.statistic=mad", "softmax softmax.tau=1",
            "log_length softmax.form=log_n", "log_length softmax.form=sqrt_log_ratio"} <= {*found}  # fmt: skip
    assert not {"softmax", "heat_treatment", "learnable_temperature", "log_length", "entropy_scaled"} & {*found}


def test_a_cell_is_made_of_seeds_alike_and_one_that_failed_has_no_moment(tmp_path: Path) -> None:
    """Seeds on which torch.compile has worked round otherwise."""
    column = replace(columns.COLUMNS[2], seeds=2)
    cell = columns.Cell(column, Row("softmax"), tmp_path, Kept(tmp_path / FILE), ("compile=true",))
    for seed, status in enumerate(("finished", "failed")):
        folder = cell.all(None).folder(seed)
        folder.mkdir(parents=True)
        told = {"status": status, "seed": seed, "softmax": "softmax", "epochs": 7, "eureka": {"threshold": 0.7}}
        if status == "failed":  # before its first validation: without a threshold
            told |= {"diverged": True, "eureka": {}}
        write_summary(folder, Summary.model_validate(told))
    kept = Kept(tmp_path / FILE)
    kept.keep(cell.ends())
    for found in (cell, replace(cell, runs=tmp_path / "gone", kept=kept)):
        assert str(found.outcome().ratio).startswith("0/2") and found.failed == 1
        assert "0/2" in page.table(column, [found], tmp_path).iloc[0, 1]
        assert page.table(column, [found], tmp_path).iloc[0, 1].endswith(", 1 failed")
    assert not replace(cell, runs=tmp_path / "gone", kept=kept, further=()).whole


def test_the_table_of_max_retrieval_tells_means_and_pairs_with_the_baseline() -> None:
    scores = pd.DataFrame(
        [
            {"seed": seed, "measure": measure, "size": size, "accuracy": base + seed * base / 50}
            for measure, base in (("softmax", 0.5), ("sigmoid", 0.6))
            for size in retrieval.SIZES
            for seed in (0, 1, 2)
        ]
    )
    found = retrieval.table(scores)
    assert found.loc["softmax [3 seeds]", "16"].startswith("51.0 (")
    assert "p = " in found.loc["sigmoid [3 seeds]", "16"] and "p = " not in found.loc["softmax [3 seeds]", "16"]
    assert "98.6" in found.loc["Baseline, paper", "16"]


def test_setups_of_the_reasoning_task_compose_and_tell_what_is_missing(
    tmp_path: Path, monkeypatch, trained_here
) -> None:
    for setup in reasoning_setups.SETUPS.values():
        softmax = reasoning_setups.SOFTMAXES[setup.softmaxes[0]]
        compose_config(["experiment=reasoning", f"softmax={softmax}", *setup.overrides])
    short = ("data.numbers=4", "trainer.max_epochs=2", "trainer.check_val_every_n_epoch=1")
    kept = Kept(tmp_path / FILE)
    cell = reasoning_setups.Cell("layer_norm", "Softmax", "2e-3", tmp_path / "runs", kept, short)
    assert "- layer_norm: Softmax at 2e-3" in reasoning_setups.page([cell], tmp_path)
    monkeypatch.setattr(reasoning_setups, "SEEDS", 2)
    cell.seeds.train()
    page = reasoning_setups.page([cell], tmp_path)
    kept.keep(cell.seeds.by_typed(cell.seeds.ends()))
    shutil.rmtree(tmp_path / "runs")
    gone = replace(cell, kept=Kept(tmp_path / FILE))
    assert reasoning_setups.page([gone], tmp_path) == page and not gone.seeds.left(2)
    assert "Not run" not in page and "| Softmax" in page and "0/2" in page and "later than 2" in page
