"""``import lab`` gives the public names, at no cost until one is used."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata, resources
from pathlib import Path

import pandas as pd
import pytest
from conftest import ROOT

import lab
from lab.bench.gathering import write_runs
from lab.console import LabError
from lab.runs.spec import run_name
from lab.runs.summary import load_summary

TIMED = """
import sys, time
started = time.process_time()
import lab
seconds = time.process_time() - started
lab.__version__
print(seconds, *(name for name in ("torch", "numpy", "pandas", "hydra") if name in sys.modules))
"""


def test_importing_the_lab_takes_no_time_and_loads_no_torch(tmp_path: Path) -> None:
    # A new Python, and no fork of one that has loaded it all.
    done = subprocess.run([sys.executable, "-c", TIMED], cwd=tmp_path, capture_output=True, text=True, check=True)
    seconds, *loaded = done.stdout.split()
    assert float(seconds) < 0.1
    assert not loaded


def test_each_public_name_is_there_and_listed() -> None:
    for name in lab.__all__:
        assert getattr(lab, name) is getattr(lab, name)
    assert set(lab.__all__) <= set(dir(lab))
    assert lab.LabError is LabError
    assert lab.__version__ == metadata.version("eureka-lab")
    with pytest.raises(AttributeError, match=r"lab.* attribute 'atend'|No lab attribute atend"):
        vars(lab)["__getattr__"]("atend")


def test_all_that_tells_the_version_tells_the_same() -> None:
    (cff,) = re.findall(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    (bib,) = re.findall(r"version = {(\S+)}", (ROOT / "CITATION.bib").read_text())
    heading = next(line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## "))
    assert re.fullmatch(r"## \S+ \((not released yet|\d{4}-\d\d-\d\d)\)", heading), heading
    assert {cff, bib, heading.split()[1]} == {lab.__version__}


def test_the_package_says_that_it_is_typed() -> None:
    assert (resources.files("lab") / "py.typed").is_file()


def test_runs_are_read_into_two_tables(tmp_path: Path) -> None:
    folders = {}
    for softmax, seed, *more in (("softmax", 0), ("softmax", 1), ("norm_softmax", 0, "softmax.tau=0.5", "debug=fast")):
        overrides = [f"softmax={softmax}", "trainer.max_epochs=20", f"seed={seed}", *more]
        lab.run(["experiment=reasoning", *overrides, f"paths.runs={tmp_path}", "threads=1"])
        folders[softmax, seed] = tmp_path / run_name("reasoning", softmax, seed, overrides)
    (damaged := tmp_path / "reasoning" / "softmax" / "seed=7").mkdir(parents=True)
    (damaged / "summary.json").write_text("{")

    runs, metrics = lab.load_runs(str(tmp_path), tmp_path / "reasoning")  # a run counts once

    assert dict(zip(runs.folder, zip(runs.softmax, runs.seed, strict=True), strict=True)) == {
        str(folder): key for key, folder in folders.items()
    }
    assert list(runs.status) == ["finished"] * 3
    assert list(runs.epochs) == list(runs.steps) == [20] * 3
    assert runs.moment_epoch.isna().all()
    for run in runs.itertuples():
        summary = load_summary(Path(run.folder))
        assert run.accuracy == summary.accuracy
        assert (run.threshold, run.prior_accuracy) == (0.7, summary.eureka.prior_accuracy)
        assert (run.watched, run.watched_value) == ("val/accuracy", summary.watched)
    # As typed where a file is chosen, else as the config has it.
    by_softmax = runs.set_index(["softmax", "seed"])
    assert set(runs.columns[runs.columns.get_loc("folder") + 1 :]) == {
        "debug",
        "softmax.tau",
        "threads",
        "trainer.max_epochs",
    }
    assert by_softmax["trainer.max_epochs"].tolist() == [20] * 3
    assert by_softmax["softmax.tau"]["norm_softmax", 0] == 0.5
    assert by_softmax["debug"].dropna().to_dict() == {("norm_softmax", 0): "fast"}

    last = metrics[(metrics.epoch == 20) & metrics["val/accuracy"].notna()]
    assert metrics.columns[:3].tolist() == ["folder", "epoch", "step"]
    assert (last.step == 20).all()
    together = last.merge(runs, on="folder")
    assert len(together) == 3
    pd.testing.assert_series_equal(together["val/accuracy"], together.accuracy, check_names=False, rtol=1e-6)


def test_the_moment_is_in_the_table_and_on_the_scale_of_the_metrics(tmp_path: Path) -> None:
    write_runs(tmp_path, 4, 30)
    runs, metrics = lab.load_runs(tmp_path)
    moments = {}
    for path in tmp_path.rglob("summary.json"):
        eureka = json.loads(path.read_text())["eureka"]
        moments[str(path.parent)] = (eureka["epoch"], eureka["step"]) if eureka["happened"] else None
    assert set(metrics.folder) == set(runs.folder) == set(moments)
    had = runs.dropna(subset="moment_epoch")
    assert 0 < len(had) < len(runs)
    for run in had.itertuples():
        assert (run.moment_epoch, run.moment_step) == moments[run.folder]
        own = metrics[(metrics.folder == run.folder) & (metrics.epoch == run.moment_epoch)]
        assert run.moment_step == own.step.max()  # validated after the epoch's last step


def test_a_folder_without_runs_gives_empty_tables(tmp_path: Path) -> None:
    runs, metrics = lab.load_runs(tmp_path)
    assert runs.empty
    assert metrics.empty
    assert {"softmax", "moment_epoch", "folder"} <= set(runs.columns)


def test_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="nowhere is no folder"):
        lab.load_runs(tmp_path / "nowhere")
    with pytest.raises(LabError, match="needs a folder of runs"):
        lab.load_runs()
    with pytest.raises(LabError, match=r"takes folders one by one, .* got \['a', 'b'\]"):
        lab.load_runs(["a", "b"])  # type: ignore[arg-type]
