"""The reproduction scripts in small: they train, go on, and write their pages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from conftest import ROOT

from lab.config import CONFIGS
from scripts.reproduce import figure_8, max_retrieval


def script(module: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", f"scripts.reproduce.{module}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_figure_8_in_small(tmp_path: Path) -> None:
    arguments = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--epochs", "30", "--seeds", "2"]
    told = script("figure_8", *arguments, "--grid", "5e-3")
    assert "about" in told.splitlines()[0]
    page = (tmp_path / "out" / "README.md").read_text()
    assert page.count("0/2 (0% to 66%)") == 3
    assert "| 3/5" in page
    assert (tmp_path / "out" / "figure_8.png").stat().st_size > 10_000


@pytest.mark.slow
def test_max_retrieval_in_small(tmp_path: Path, monkeypatch) -> None:
    from lab.train import run as train_with

    runs, out = tmp_path / "runs", tmp_path / "out"
    train_with(["experiment=max_retrieval", "seeds=2", "trainer.max_steps=150", f"paths.runs={runs}", "threads=1"])
    folders = sorted(path.parent for path in runs.rglob("config.yaml"))
    monkeypatch.setattr(max_retrieval, "SIZES", (16, 64, 256))
    max_retrieval.evaluate(folders, out, sets=200, fit_sets=30, command="test")
    scores = pd.read_csv(out / "accuracies.csv")
    assert len(scores) == 2 * 3 * 3
    baseline = scores[scores["measure"] == "baseline"].groupby("size")["accuracy"].mean()
    assert baseline[16] > 0.5 > baseline[256]
    page = (out / "README.md").read_text()
    assert "softmax.coefficients=[" in page
    assert "| baseline, paper " in page
    for name in ("figure_2_and_6", "figure_4", "figure_5"):
        assert (out / f"{name}.png").stat().st_size > 10_000


def test_figure_8_chooses_the_earliest_moment(monkeypatch) -> None:
    def summary(self, softmax: str, lr: str, seed: int, trial: bool = False) -> dict:
        moments = {"1e-3": None, "2e-3": 900, "5e-3": 300}
        moment = moments[lr]
        eureka = {"happened": moment is not None, **({"epoch": moment} if moment else {})}
        return {"eureka": eureka, "best": {"accuracy": 0.99 if lr == "1e-3" else 0.8}}

    monkeypatch.setattr(figure_8.Plan, "summary", summary)
    plan = figure_8.Plan(Path("runs"), 100, 5, ("1e-3", "2e-3", "5e-3"), ())
    assert figure_8.choose(plan, "softmax") == "5e-3"


def test_rows_of_table_1_are_those_of_its_sweep_and_of_their_folder() -> None:
    rows = re.findall(r'"\+row=(.+)"', (ROOT / "scripts" / "reproduce" / "table1_main.sh").read_text())
    sweep = yaml.safe_load((CONFIGS / "sweep" / "table_1.yaml").read_text())["hydra"]["sweeper"]["params"]["+row"]
    assert rows == sweep.split(",")
    assert sorted(rows) == sorted(path.stem for path in (CONFIGS / "row").glob("*.yaml"))


def test_test_sets_differ_by_seed_and_are_fewer_when_large() -> None:
    assert max_retrieval.sets_of(16, 1000) == 1000
    assert max_retrieval.sets_of(16_384, 1000) == 128
    one, other = (next(max_retrieval.batches(32, 4, seed))["x"][0] for seed in (0, 1))
    assert not torch.equal(one, other)
    assert sum(len(batch["y"]) for batch in max_retrieval.batches(2**17, 5, 0)) == 5
