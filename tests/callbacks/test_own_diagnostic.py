"""A diagnostic of one's own, as the page tells it: in training, over training and on a checkpoint."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path

import pandas as pd
import pytest
from conftest import ROOT, python

from lab.inspect import main as look
from lab.observation.observe import Chunk, Findings
from lab.observation.recorder import QUANTITIES

PAGE = (ROOT / "docs" / "diagnostics.md").read_text()


def block(language: str) -> str:
    """The page's block in a language, as a reader copies it."""
    (text,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return text


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page's files in it."""
    assert block("python").startswith("# my_diagnostics.py\n")
    (tmp_path / "my_diagnostics.py").write_text(block("python"))
    assert block("yaml").startswith("# configs/callbacks/sharpest.yaml\n")
    (tmp_path / "mine" / "callbacks").mkdir(parents=True)
    (tmp_path / "mine" / "callbacks" / "sharpest.yaml").write_text(block("yaml"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_diagnostics", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_watches_a_run_and_looks_into_one(
    mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = ["experiment=reasoning", "callbacks=[reasoning,sharpest]", "trainer.max_epochs=4", "data.numbers=4"]
    looks = ["diagnostics.every_n_epochs=2", "diagnostics.pictures_every_n_epochs=4", "threads=1", "logger=csv_only"]
    python("-m", "lab.train", "--config-dir", "mine", *overrides, *looks, folder=mine)
    (run,) = (path.parent for path in mine.rglob("config.yaml"))
    table = pd.read_csv(run / "diagnostics" / "sharpest.csv")
    assert list(table.columns) == ["epoch", "step", "layer", "largest"] and table["step"].tolist() == [0, 2, 4]
    assert table["largest"].between(1 / 5, 1).all()
    drawn = {str(path.relative_to(run / "pictures")) for path in run.glob("pictures/sharpest*/**/*.png")}
    drawn |= {path.name for path in run.glob("pictures/sharpest.png")}
    assert drawn == {"sharpest.png", "sharpest/layers_epoch_00000.png", "sharpest/layers_epoch_00004.png"}
    assert "sharpest/layer_0" in pd.read_csv(run / "metrics.csv").columns

    monkeypatch.setattr(sys, "argv", ["lab.inspect", "--config-dir=mine", f"run={run}", "diagnostics=[sharpest]"])
    look()
    told = capsys.readouterr()
    folder = run / "inspect" / "step_000000004"
    found = pd.read_csv(folder / "diagnostics" / "sharpest.csv")
    assert list(found.columns) == ["step", "layer", "largest"]
    assert found["largest"].item() == pytest.approx(table["largest"].iloc[-1], rel=1e-4)
    assert "largest" in told.out and f"{found['largest'].item():.4g}" in told.out
    assert f"written: {folder / 'pictures' / 'sharpest' / 'layers.png'}" in told.err


def test_what_it_gets_and_returns_stands_on_the_page() -> None:
    assert all(f'`"{name}"`' in PAGE for name in QUANTITIES)
    assert all(f"`chunk.{field.name}`" in PAGE for field in fields(Chunk))
    assert all(f"| `{field.name}` |" in PAGE for field in fields(Findings))
