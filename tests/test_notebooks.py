"""The notebooks run from top to bottom, as they are, in folders such as their text asks for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, made_once, set_status

import lab
from lab.train import run as train_with

NOTEBOOKS = ROOT / "docs" / "notebooks"
SHORT = ("data.numbers=4", "trainer.max_epochs=20", "logger=csv_only", "callbacks.eureka.threshold=0.4", "threads=1")


def cells(name: str) -> list[str]:
    """Code of a notebook's cells."""
    book = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"]


def execute(name: str) -> dict[str, Any]:
    """Runs the cells of a notebook in this process and its working directory; its names at the end."""
    shown: list[Any] = []
    names: dict[str, Any] = {"display": shown.append, "shown": shown}
    for number, source in enumerate(cells(name)):
        code = "\n".join(line for line in source.splitlines() if not line.startswith("%"))
        exec(compile(code, f"{name}, cell {number}", "exec"), names)
    return names


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory) -> Path:
    """A folder with short runs of two softmaxes, where the notebook is."""
    (tmp_path / "runs").symlink_to(made_once(tmp_path_factory, "notebook-runs", _train))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def _train(runs: Path) -> None:
    for softmax in ("softmax", "norm_softmax"):
        train_with(["experiment=reasoning", f"softmax={softmax}", *SHORT, f"paths.runs={runs / 'demo'}"])
        together = ["experiment=reasoning_small", f"softmax={softmax}", "seeds=3", *SHORT]
        train_with([*together, f"paths.runs={runs}"])
        # As without the options that make the runs short.
        (trained,) = (runs / "reasoning_small").glob(f"{softmax},*")
        trained.rename(trained.with_name(softmax))
    # Further runs, which the notebooks leave out: a seed that failed, and another setting.
    small = runs / "reasoning_small"
    set_status(small / "softmax" / "seed=2", "failed")
    shutil.copytree(small / "softmax" / "seed=0", small / "softmax,optim.lr=1e3" / "seed=0")


def test_from_the_demo_to_attention_maps(place: Path) -> None:
    names = execute("attention_maps")
    assert set(names["last_rows"]) == {"softmax", "norm_softmax"} and len(names["shown"]) == 2
    for table in names["last_rows"].values():
        assert table.shape == (4, 5) and table.sum(axis=1).tolist() == pytest.approx([1] * 4, abs=1e-5)


def test_a_softmax_of_ones_own_gets_its_row(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(overrides: list[str]) -> Any:
        return train_with([*(one.replace("seeds=5", "seeds=2") for one in overrides), *SHORT])

    monkeypatch.setattr(lab, "run", short)
    names = execute("own_softmax")
    assert set(names["times"]) == {"softmax", "norm_softmax", "RootMeanSquare"}
    assert names["moments"]["RootMeanSquare"][1] == 2


def test_a_reports_numbers_by_hand(place: Path) -> None:
    names = execute("report_by_hand")
    assert max(names["survival"].index) == names["runs"].epochs.max() and (names["survival"].loc[0] == 1).all()
    assert set(names["ratio"].index) == set(names["table"].index) == {"softmax", "norm_softmax"}
    assert names["ratio"].seeds.to_dict() == {"softmax": 2, "norm_softmax": 3}


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_kept_as_it_ran(path: Path) -> None:
    """In order, without an error, small, and without the paths of the machine it ran on."""
    text = path.read_text(encoding="utf-8")
    code = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not [out for cell in code for out in cell["outputs"] if out["output_type"] == "error"]
    assert len(text) < 300_000 and str(ROOT) not in text and "/tmp/" not in text
