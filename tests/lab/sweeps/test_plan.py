"""What a sweep plans is what it makes, and is written down once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml
from conftest import lab_train, write_a_summary
from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode

from lab.runs.lock import FolderLock
from lab.runs.spec import RunSpec
from lab.status import main
from lab.sweeps.plan import read_plan, read_plans, write_plan
from lab.sweeps.record import RecordPlan, jobs_of, planned
from lab.sweeps.status import Gathering


def multirun(*overrides: str):
    """A multirun's config; Hydra stays initialised around the caller."""
    return GlobalHydra.instance().hydra.compose_config(
        "train", list(overrides), run_mode=RunMode.MULTIRUN, with_log_configuration=False
    )


def test_a_plan_names_the_folders_of_its_runs(hydra) -> None:
    """The softmax of a run may come from its row, the seeds and the experiment from the sweep."""
    config = multirun("+sweep=table_10", "seed=0,3", "paths.runs=/runs", "threads=1")
    jobs = jobs_of(config)
    folders = []
    for job in jobs:
        one = compose("train", overrides=list(job), return_hydra_config=True)
        folders.append(RunSpec.of(one, job, one.hydra.runtime.choices).name)
    assert planned(config) == folders
    assert len(set(folders)) == 6
    assert folders[-1].startswith("digit_grouping/norm_softmax,") and folders[-1].endswith("/seed=3")


def test_a_seed_that_is_none_of_seeds_is_told_before_any_run(tmp_path: Path) -> None:
    typed = ["experiment=reasoning", "data.numbers=4", "trainer.max_epochs=1", "threads=1", "seeds=[4,5]", "seed=0,1"]
    refused = lab_train("-m", *typed, folder=tmp_path, check=False)
    assert refused.returncode == 1 and "Traceback" not in refused.stderr
    assert "error: seed=1 is not one of seeds=[4, 5]" in refused.stderr and not list(tmp_path.rglob("config.yaml"))


def test_null_in_a_file_of_a_sweep_is_a_value(tmp_path: Path) -> None:
    (tmp_path / "configs" / "sweep").mkdir(parents=True)
    params = {"softmax.tau": None, "data.numbers": 4, "seed": "0,1"}
    sweep = {"defaults": [{"override /experiment": "reasoning"}], "hydra": {"sweeper": {"params": params}}}
    (tmp_path / "configs" / "sweep" / "own.yaml").write_text("# @package _global_\n" + yaml.safe_dump(sweep))
    typed = ["--config-dir", "configs", "+sweep=own", "trainer.max_epochs=1", "threads=1", "logger=csv_only"]
    made = lab_train("-m", *typed, folder=tmp_path)
    assert made.returncode == 0, made.stderr
    names = {path.parent.parent.name for path in tmp_path.rglob("summary.json")}
    assert names == {"softmax,data.numbers=4,softmax.tau=null,trainer.max_epochs=1"}


def test_seeds_trained_together_are_runs_of_their_own(hydra) -> None:
    names = planned(multirun("experiment=reasoning", "softmax=softmax,norm_softmax", "seeds=3", "seed=2"))
    assert names == [f"reasoning/{softmax}/seed={n}" for softmax in ("softmax", "norm_softmax") for n in (2, 3, 4)]
    listed = planned(multirun("experiment=reasoning", "seeds=[0,3],[3,7]"))
    assert listed == [f"reasoning/softmax/seed={n}" for n in (0, 3, 3, 7)]


def test_a_sweep_that_cannot_be_split_has_no_plan(hydra, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        RecordPlan().on_multirun_start(multirun("seeds=[1,1],[2]", f"paths.runs={tmp_path}"))
    for wrong in ("optim.lr=interval(0.1,1)", "softmax=softmax,none_such", "data=missing,more"):
        RecordPlan().on_multirun_start(multirun(wrong, f"paths.runs={tmp_path}"))
    assert not list(tmp_path.rglob("plan-*"))


@pytest.mark.parametrize(
    ("typed", "folder"),
    [
        (["seed=0,0"], "reasoning/softmax/seed=0"),
        (["seed=range(4)", "seeds=4"], "reasoning/softmax/seed=1, and 4 more"),
        (["softmax=softmax,norm_softmax", "++optim.lr=0.1,0.10"], "optim.lr=0.1/seed=0, and 1 more"),
    ],
)
def test_a_sweep_of_which_two_runs_would_be_one_is_refused(
    hydra, tmp_path: Path, capsys, typed: list[str], folder: str
) -> None:
    with pytest.raises(SystemExit):
        RecordPlan().on_multirun_start(multirun("experiment=reasoning", *typed, f"paths.runs={tmp_path}"))
    said = capsys.readouterr().err
    assert "two runs of this sweep would share a folder, reasoning/softmax" in said and folder in said
    assert not list(tmp_path.rglob("plan-*"))


def test_a_folder_that_cannot_be_written_is_told_before_any_run(hydra, tmp_path: Path, capsys) -> None:
    (tmp_path / "file").touch()
    for sweep in ((), ("+sweep=search",)):
        with pytest.raises(SystemExit):
            RecordPlan().on_multirun_start(multirun("seed=0,1", f"paths.runs={tmp_path}/file/runs", *sweep))
        assert f"error: paths.runs: {tmp_path}/file/runs/.sweeps cannot be written: " in capsys.readouterr().err


def test_a_home_folder_is_one_for_hydra_too(hydra, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert multirun("paths.runs='~/runs'").hydra.sweep.dir == f"{tmp_path}/runs/.sweeps"


def test_the_same_runs_are_one_file(tmp_path: Path) -> None:
    first = write_plan(tmp_path, ["a/b/seed=0", "a/b/seed=1"], "a command")
    again = write_plan(tmp_path, ["a/b/seed=1", "a/b/seed=0", "a/b/seed=1"], "the same in other words")
    other = write_plan(tmp_path, ["a/b/seed=0"], "another")
    assert first == again != other
    assert read_plan(first).command == "a command"
    assert read_plan(first).folders == (tmp_path / "a/b/seed=0", tmp_path / "a/b/seed=1")
    other.write_text("{half")
    assert [plan.path for plan in read_plans(first.parent)] == [first]
    write_plan(tmp_path, ["a/b/seed=0"], "another")
    assert len(read_plans(first.parent)) == 2


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Six planned runs by two plans that share two of them; one of each is there."""
    runs = tmp_path / "runs"
    write_plan(runs, [f"task/softmax/seed={n}" for n in range(4)], "python -m lab.train -m seed=0,1,2,3")
    write_plan(runs, [f"task/softmax/seed={n}" for n in (2, 3)] + ["task/norm/seed=0", "task/norm/seed=1"], "two")
    for name in ("task/softmax/seed=2", "task/norm/seed=0"):
        folder = runs / name
        folder.mkdir(parents=True)
        write_a_summary(folder)
    return runs


def seen(root: Path) -> list[str]:
    return [f"{run.status} {run.folder.relative_to(root)}" for run in Gathering(root).look()]


def test_planned_runs_that_are_not_there_are_missing(runs: Path) -> None:
    missing = [f"missing task/{name}" for name in ("norm/seed=1", "softmax/seed=0", "softmax/seed=1", "softmax/seed=3")]
    assert seen(runs) == [*missing, "finished task/norm/seed=0", "finished task/softmax/seed=2"]
    # Below a subfolder only its own; above, as well.
    assert seen(runs / "task" / "norm") == ["missing seed=1", "finished seed=0"]
    assert len(seen(runs.parent)) == 6


def test_a_planned_run_that_loads_is_running(runs: Path) -> None:
    """Loading data and models takes a while, and the first summary comes after it."""
    folder = runs / "task" / "softmax" / "seed=1"
    lock = FolderLock(folder)
    lock.acquire()
    assert [(run.reason, run.plans) for run in Gathering(folder).look()] == [("loading", ())]
    assert "running task/softmax/seed=1" in seen(runs)
    lock.release()
    assert "missing task/softmax/seed=1" in seen(runs)


def test_a_plan_that_is_deleted_is_forgotten(runs: Path) -> None:
    both = next(run for run in Gathering(runs).look() if run.folder.name == "seed=3")
    assert len(both.plans) == 2
    next(plan for plan in both.plans if plan.command == "two").path.unlink()
    assert [run.folder.name for run in Gathering(runs).look() if run.status == "missing"] == [
        "seed=0",
        "seed=1",
        "seed=3",
    ]


def test_the_table_counts_them_and_names_the_file(runs: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["lab.status", str(runs)])
    monkeypatch.setenv("COLUMNS", "300")
    main()
    told = capsys.readouterr().out
    assert "4 missing, 2 finished" in " ".join(told.split())
    assert "3 missing of: python -m lab.train -m seed=0,1,2,3" in told and "2 missing of: two" in told
    for plan in (runs / ".sweeps").glob("plan-*.json"):
        assert f"to forget them, delete {plan}\n" in told


def test_only_what_has_changed_is_read_again(runs: Path, monkeypatch) -> None:
    read = []
    from lab.sweeps import status

    real = status.load_summary
    monkeypatch.setattr(status, "load_summary", lambda folder: read.append(folder.name) or real(folder))
    gathering = Gathering(runs)
    first = [run.folder for run in gathering.look()]
    assert sorted(read) == ["seed=0", "seed=2"]
    assert [run.folder for run in gathering.look()] == first and len(read) == 2
    changed = runs / "task" / "norm" / "seed=0" / "summary.json"
    written = changed.with_name("new")
    written.write_text(json.dumps({"status": "failed", "seed": 0, "softmax": "norm", "error": "why"}))
    written.replace(changed)
    assert [run.reason for run in gathering.look() if run.status == "failed"] == ["why"]
    assert read[2:] == ["seed=0"]


def test_a_sweep_writes_its_plan_before_its_first_job(tmp_path: Path) -> None:
    command = ("-m", "experiment=reasoning", "data.numbers=4", "trainer.max_epochs=10", "softmax=softmax,norm_softmax",
               "optim.weight_decay=1", "seed=range(2)")  # fmt: skip
    lab_train(*command, folder=tmp_path)
    (plan,) = read_plans(tmp_path / "runs" / ".sweeps")
    made = {path.parent for path in (tmp_path / "runs").rglob("summary.json")}
    assert set(plan.folders) == made and len(made) == 4
    assert plan.command.startswith("python -m lab.train -m experiment=reasoning")
    assert plan.path.stat().st_mtime <= min((folder / "config.yaml").stat().st_mtime for folder in made)
    assert {run.status for run in Gathering(tmp_path / "runs").look()} == {"finished"}
