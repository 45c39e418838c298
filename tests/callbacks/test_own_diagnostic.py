"""A diagnostic of one's own, as the page tells it: in training, over training and on a checkpoint."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from conftest import ROOT, python, summary_of, train_in
from matplotlib.figure import Figure

from lab.callbacks.diagnostics.base import Diagnostic
from lab.console import LabError
from lab.inspect import main as look
from lab.observation.observe import Chunk, Findings
from lab.observation.recorder import QUANTITIES
from lab.runs.tensorboard import TensorBoard

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


class Sharpest(Diagnostic):
    """Reads nothing; ``finding`` is what it concludes, ``picture`` what it draws over training."""

    finding: Any = None
    picture: Any = None

    def see(self, chunk: Chunk) -> None: ...

    def conclude(self, seen: list[Any]) -> Any:
        return Findings(rows=[{"largest": 1.0}]) if self.finding is None else self.finding

    def history(self, table: pd.DataFrame, moment: float | None) -> Any:
        return self.picture(table)


def train_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str = "Sharpest", logger: str = "csv_only"
) -> Path:
    (tmp_path / "mine" / "callbacks").mkdir(parents=True)
    config = f"own:\n  _target_: {__name__}.{target}\n  folder: ${{paths.run}}\n"
    (tmp_path / "mine" / "callbacks" / "own.yaml").write_text(config)
    short = ["experiment=reasoning", "callbacks=[reasoning,own]", "trainer.max_epochs=2", "data.numbers=4"]
    return train_in(tmp_path / "runs", f"hydra.searchpath=[file://{tmp_path}/mine]", *short, f"logger={logger}")


@pytest.mark.parametrize("picture", [lambda table: table["lagest"], lambda table: "no figure"])
def test_a_picture_over_training_that_fails_fails_no_run(
    picture: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Sharpest, "picture", lambda self, table: picture(table))
    run = train_with(tmp_path, monkeypatch)
    assert summary_of(run)["status"] == "finished" and (run / "diagnostics" / "sharpest.csv").exists()
    assert "callbacks.own draws no picture over training: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"rows": [[1.0]]}, "rows are dicts, column -> value, and one is a list"),
        ({"scalars": {"a": torch.zeros(3)}}, "scalars are single numbers, and one is a Tensor"),
        ({"scalars": {"a": "high"}}, "scalars are single numbers, and one is 'high'"),
        ({"rows": [{"a": torch.zeros(3)}]}, "values in rows are single, and one is a Tensor"),
        ({"histograms": {"a": [1.0]}}, "histograms are tensors, and one is a list"),
        ({"arrays": {"a": [1, [2, 3]]}}, "arrays are numbers that numpy can save, and one is a list"),
        ({"figures": {"../a": Figure}}, "names of figures are names of files, and one is '../a'"),
        ({"figures": {"": Figure}}, "names of figures are names of files, and one is ''"),
        ({"figures": {"a": Figure()}}, "figures are functions that make a figure, and one is a Figure"),
    ],
)
def test_findings_of_another_form_are_refused(
    parts: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sharpest, "finding", Findings(**parts))
    with pytest.raises(LabError, match=f"Sharpest.conclude: {words}"):
        train_with(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("regions", "words"),
    [
        (lambda self, batch: {}["nope"], "ReasoningData.regions fails: KeyError: 'nope'"),
        (
            lambda self, batch: None,
            "regions must return a dict, name -> tensor of bool, and returned NoneT",
        ),
        (lambda self, batch: {"a": [True]}, "regions: a must be a tensor of bool, and is a list"),
        (lambda self, batch: {"a": batch["x"].float()}, "regions: a must be a tensor of bool, and is one of torch.fl"),
    ],
)
def test_wrong_regions_are_told_with_who_gives_them(regions: Any, words: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("lab.datasets.reasoning.ReasoningData.regions", regions)
    with pytest.raises(LabError, match=words):
        train_with(tmp_path, monkeypatch)


def test_a_picture_keeps_its_name_on_the_boards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(TensorBoard, "show_picture", lambda self, tag, png, step: shown.append(tag))
    figures = {"loss_epoch_mean": Figure, "loss_epoch_wise": Figure}
    monkeypatch.setattr(Sharpest, "finding", Findings(figures=figures))
    train_with(tmp_path, monkeypatch, logger="tensorboard")
    assert {tag for tag in shown if tag.startswith("sharpest")} == {f"sharpest/{name}" for name in figures}


def test_a_tensor_in_a_row_is_written_as_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sharpest, "finding", Findings([{"x": torch.tensor(0.5)}], {"y": torch.tensor(2)}))  # type: ignore[dict-item]
    run = train_with(tmp_path, monkeypatch)
    assert pd.read_csv(run / "diagnostics" / "sharpest.csv")["x"].unique().tolist() == [0.5]


class NotCalled(Sharpest):
    def __init__(self, folder: str) -> None: ...


class Half(Diagnostic):
    def see(self, chunk: Chunk) -> None: ...


class NoCallback:
    def __init__(self, folder: str) -> None: ...


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("NotCalled", r"callbacks.own: .*NotCalled does not call super\(\).__init__ with its folder and cadence"),
        ("Half", "Half cannot be made: TypeError: Can't instantiate abstract class Half .*conclude"),
        ("NoCallback", "NoCallback is no callback: derive it from Lightning's Callback"),
    ],
)
def test_a_class_that_cannot_watch_is_refused(
    target: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LabError, match=words):
        train_with(tmp_path, monkeypatch, target)
    assert not [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]


def test_what_it_gets_and_returns_stands_on_the_page() -> None:
    assert all(f'`"{name}"`' in PAGE for name in QUANTITIES)
    assert all(f"`chunk.{field.name}`" in PAGE for field in fields(Chunk))
    assert all(f"| `{field.name}` |" in PAGE for field in fields(Findings))
