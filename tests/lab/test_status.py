"""The status of runs is what their summaries say, and a killed run is not running."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from lab.status import gather, main, status_of


def write(folder: Path, **summary: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    common = {"max_epochs": 300, "metrics": {"val/accuracy": 0.51}, "eureka": {"happened": False}}
    write(tmp_path / "softmax" / "seed=0", status="finished", epochs=300, **common)
    write(tmp_path / "softmax" / "seed=1", status="running", epochs=100, wall_seconds=600, **common)
    write(tmp_path / "softmax" / "seed=2", status="failed", error="the loss is not finite at step 7", **common)
    moment = {**common, "eureka": {"happened": True, "epoch": 12}, "metrics": {"val/accuracy": 0.9}}
    write(tmp_path / "norm" / "seed=0", status="running", epochs=100, wall_seconds=600, **moment)
    write(tmp_path / "norm" / "seed=0~1", status="failed")
    (tmp_path / "norm" / "seed=1").mkdir()
    (tmp_path / "norm" / "seed=1" / "summary.json").write_text("{half")
    return tmp_path


def test_a_run_is_running_only_while_somebody_holds_it(runs: Path) -> None:
    with FileLock(runs / "norm" / "seed=0" / ".lock"):
        found = {str(run.folder.relative_to(runs)): run for run in gather(runs)}
    assert [run.status for run in found.values()] == ["failed", "running", "stopped", "finished", "damaged"]
    running = found["norm/seed=0"]
    assert (running.moment, running.accuracy, running.seconds_left) == (12, 0.9, 1200.0)
    assert found["softmax/seed=1"].seconds_left is None
    assert found["softmax/seed=2"].reason == "the loss is not finite at step 7"
    assert status_of(runs / "softmax" / "seed=0").epochs == 300


def test_the_table_names_all_and_counts_them(runs: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["lab.status", str(runs)])
    monkeypatch.setenv("COLUMNS", "200")
    main()
    told = capsys.readouterr().out
    assert "1 failed, 2 stopped, 1 finished, 1 damaged" in " ".join(told.split())
    assert "the loss is not finite at step 7" in told and "90.0%" in told


def test_a_folder_that_is_none_is_refused(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["lab.status", str(tmp_path / "nowhere")])
    with pytest.raises(SystemExit):
        main()
    assert "is no folder" in capsys.readouterr().err


def test_it_answers_at_once() -> None:
    """Torch alone takes seconds to import."""
    code = "import sys, lab.status; print({'torch', 'lightning', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
