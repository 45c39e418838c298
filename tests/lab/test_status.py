"""The status of runs is what their summaries say, and a killed run is not running."""

from __future__ import annotations

import json
import math
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from conftest import ROOT
from filelock import FileLock

from lab.runs import slurm
from lab.status import main
from lab.sweeps import jobs
from lab.sweeps.plan import write_plan
from lab.sweeps.record import planned_runs
from lab.sweeps.status import Gathering, RunStatus, plain, status_of


def write(folder: Path, **summary: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps({"softmax": "softmax", "seed": 0, "epochs": 1, **summary}))
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


@pytest.fixture
def status(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """The command, with these words, in a wide terminal."""

    def typed(*words: str | Path) -> None:
        monkeypatch.setattr(sys, "argv", ["lab.status", *map(str, words)])
        main()

    monkeypatch.setenv("COLUMNS", "200")
    return typed


def test_a_run_is_running_only_while_somebody_holds_it(runs: Path) -> None:
    with FileLock(runs / "norm" / "seed=0" / ".lock"):
        found = {str(run.folder.relative_to(runs)): run for run in Gathering(runs).look()}
    assert [run.status for run in found.values()] == ["failed", "damaged", "running", "stopped", "finished"]
    running = found["norm/seed=0"]
    assert (running.moment, running.accuracy, running.seconds_left) == (12, 0.9, 1200.0)
    assert found["softmax/seed=1"].seconds_left is None
    path = runs / "norm" / "seed=0" / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "seconds_left": 41.0}))  # its max_time is nearer
    with FileLock(runs / "norm" / "seed=0" / ".lock"):
        assert status_of(runs / "norm" / "seed=0").seconds_left == 41.0
    assert found["softmax/seed=2"].reason == "the loss is not finite at step 7"
    assert status_of(runs / "softmax" / "seed=0").epochs == 300


def test_a_run_that_goes_on_is_seen_to_before_its_summary_changes(runs: Path) -> None:
    gathering, folder = Gathering(runs), runs / "norm" / "seed=0"
    for held, status in ((False, "stopped"), (True, "running")):
        with FileLock(folder / ".lock") if held else nullcontext():
            assert next(run.status for run in gathering.look() if run.folder == folder) == status


def test_what_a_stranger_wrote_does_not_steer_the_terminal(tmp_path: Path, status, capsys) -> None:
    folder = write(tmp_path / "\\[red]a\x1b[31m", status="failed", error="b\x1b]0;c\x07 \\[bold]d")
    (folder / ".job.json").write_text('{"job": 5, "folder": ["a"]}')
    plan = write_plan(tmp_path, ["missing"], "e\x1b[2J")
    plan.with_name("plan-0.json").write_text("[" * 100_000)
    status(tmp_path)
    told = capsys.readouterr().out
    assert "\x1b" not in told and "1 failed, 1 missing" in " ".join(told.split())
    assert all(text in told for text in (r"\[red]a\x1b[31m", r"b\x1b]0;c\x07 \[bold]d", r"e\x1b[2J"))


def test_the_table_names_all_and_counts_them(runs: Path, status, capsys) -> None:
    status(runs)
    told = capsys.readouterr().out
    assert "1 failed, 1 damaged, 2 stopped, 1 finished" in " ".join(told.split())
    assert "the loss is not finite at step 7" in told and "90.0%" in told


@pytest.mark.parametrize("dumb", [False, True])
def test_what_is_watched_in_a_file_is_written_each_time(dumb: bool, runs: Path, status, monkeypatch, capsys) -> None:
    """And on a terminal that cannot draw over what it shows, such as that of Emacs."""
    if dumb:
        monkeypatch.setenv("TERM", "dumb")
        monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("lab.status.time.sleep", sleep)
    status(runs, "--watch", "5")
    told = " ".join(capsys.readouterr().out.split())  # the title is as wide as the table
    assert waited == [5.0, 5.0] and told.count("1 failed, 1 damaged") == 2
    with pytest.raises(SystemExit):
        status("--plan", "experiment=reasoning", "--watch", "5")
    assert "--watch must come before --plan" in capsys.readouterr().err


def test_a_program_reads_the_same_runs(sweep: Path, status, monkeypatch, capsys) -> None:
    monkeypatch.setattr(slurm, "queued", lambda timeout: {})
    with FileLock(sweep / "norm" / "seed=0" / ".lock"):
        status(sweep, "--json")
    found = {run["run"]: run for run in json.loads(capsys.readouterr().out)}
    seen = {"epoch": 100, "max_epochs": 300, "accuracy": 0.9, "metric": "val/accuracy", "value": 0.9, "moment": 12}
    running = {"status": "running", "run": "norm/seed=0", **seen, "change_point": None, "seconds_left": 1200.0}
    assert found["norm/seed=0"] == {**running, "reason": None}
    missing = found["softmax/seed=4"]
    assert [key for key, value in missing.items() if value is not None] == ["status", "run"]
    assert list(missing) == list(found["norm/seed=0"]) and len(found) == 7
    diverged = plain(RunStatus(sweep, "failed", accuracy=0.5, metric="val/loss", value=math.nan), sweep)
    assert (diverged["accuracy"], diverged["value"]) == (0.5, None)
    status("--json", "--plan", "experiment=reasoning", f"paths.runs={sweep}")
    assert [run["run"] for run in json.loads(capsys.readouterr().out)] == ["reasoning/softmax/seed=0"]
    for wrong, told in (
        ([str(sweep), "--json", "--watch", "5"], "--json prints the runs once: leave --watch out"),
        (["--plan", "experiment=reasoning", "--json"], "--json must come before --plan"),
    ):
        with pytest.raises(SystemExit):
            status(*wrong)
        assert told in capsys.readouterr().err


def test_a_reason_is_its_first_words(tmp_path: Path, status, capsys) -> None:
    write(tmp_path / "softmax" / "seed=0", status="failed", error="\n\nno room is left\nin two lines")
    status(tmp_path)
    assert "no room is left" in capsys.readouterr().out


def test_a_folder_that_is_none_is_refused(tmp_path: Path, status, capsys) -> None:
    with pytest.raises(SystemExit):
        status(tmp_path / "nowhere")
    assert "is no folder" in capsys.readouterr().err


def test_the_commands_of_the_pages_run(tmp_path: Path, status, monkeypatch, capsys) -> None:
    """Those with configs of one's own are typed by tests/lab/test_extending.py."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    lines = {
        line for page in pages for line in page.read_text().splitlines() if line.startswith("python -m lab.status ")
    }
    typed = [shlex.split(line, comments=True)[3:] for line in sorted(lines) if "--config-dir" not in line]
    assert ["runs", "--json"] in typed and ["--plan", "+sweep=table_1"] in typed
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(slurm, "queued", lambda timeout: {})
    monkeypatch.setattr("lab.status._watch", lambda gathering, root, seconds: gathering.look())
    write(tmp_path / "runs" / "softmax" / "seed=0", status="finished")
    for words in typed:
        status(*words)
    assert "1 finished" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["train", "inspect", "status"])
def test_commands_answer_at_once(command: str) -> None:
    """--help and a wrong name wait for no library that takes seconds to import, as torch alone does."""
    code = f"import sys, lab.{command}; print({{'torch', 'lightning', 'matplotlib'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.fixture
def sweep(runs: Path) -> Path:
    """The same runs, three of which an array of jobs is to go on with, and two that it is to begin."""
    write_plan(runs, ["softmax/seed=3", "softmax/seed=4"], "python -m lab.train -m seed=3,4")
    for number, name in enumerate(["softmax/seed=0", "softmax/seed=1", "softmax/seed=2", "softmax/seed=3"]):
        logs = runs / ".sweeps" / "slurm" / f"7_{number}"
        logs.mkdir(parents=True)
        jobs.write_json(runs / name / jobs.JOB, {"job": f"7_{number}", "folder": str(logs.parent / "%j")})
    return runs


def statuses(gathering: Gathering) -> dict[str, tuple[str, str]]:
    found = {str(run.folder.relative_to(gathering.root)): run for run in gathering.look()}
    return {name: (run.status, run.reason) for name, run in found.items() if name.startswith("softmax")}


def test_runs_whose_job_waits_are_queued(sweep: Path, monkeypatch) -> None:
    queue = {"7_0": "Priority", "7_1": "BeginTime", "7_2": None, "7_3": "PartitionConfig"}
    monkeypatch.setattr(slurm, "queued", lambda timeout: queue)
    assert statuses(Gathering(sweep)) == {
        "softmax/seed=0": ("finished", ""),
        "softmax/seed=1": ("queued", "job 7_1: BeginTime"),
        "softmax/seed=2": ("running", "job 7_2 begins"),
        "softmax/seed=3": ("queued", "job 7_3: PartitionConfig"),
        "softmax/seed=4": ("missing", ""),
    }
    (going_on,) = (run for run in Gathering(sweep).look() if run.reason == "job 7_1: BeginTime")
    assert going_on.epochs == 100
    # A job that has ended is not mistaken for another one that SLURM has given its number.
    (sweep / ".sweeps" / "slurm" / "7_3" / "7_3_0_result.pkl").write_bytes(b"")
    assert statuses(Gathering(sweep))["softmax/seed=3"] == ("missing", "")


def test_the_same_command_is_not_asked_for_what_is_queued(sweep: Path, status, monkeypatch, capsys) -> None:
    monkeypatch.setattr(slurm, "queued", lambda timeout: {"7_3": ""})
    status(sweep)
    told = capsys.readouterr().out
    assert "1 queued, 2 stopped, 1 missing" in " ".join(told.split())
    assert "job 7_3: pending" in told
    assert "1 missing of: python -m lab.train -m seed=3,4" in told


def test_without_an_answer_of_slurm_the_table_says_so(sweep: Path, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(slurm, "queued", lambda timeout: asked.append(timeout))
    gathering = Gathering(sweep)
    found = statuses(gathering)
    assert found["softmax/seed=1"] == ("stopped", "job 7_1 may be queued: squeue does not answer")
    assert found["softmax/seed=2"] == ("failed", "the loss is not finite at step 7")
    assert found["softmax/seed=3"] == ("missing", "job 7_3 may be queued: squeue does not answer")
    # It is not waited for long, and not at every look.
    gathering.look()
    assert len(asked) == 1 and asked[0] <= 5


def test_squeue_is_not_asked_where_no_run_has_a_job(runs: Path, monkeypatch) -> None:
    monkeypatch.setattr(slurm, "queued", lambda timeout: pytest.fail("asked"))
    assert len(Gathering(runs).look()) == 5


def test_a_plan_lists_what_a_sweep_would_run(tmp_path: Path, status, capsys) -> None:
    sweep = ["-m", "experiment=reasoning", "softmax=softmax,norm_softmax", "seeds=2", f"paths.runs={tmp_path}"]
    write(tmp_path / "reasoning" / "softmax" / "seed=1", status="finished")
    write(tmp_path / "reasoning" / "softmax" / "seed=2", status="finished")
    status("--plan", *sweep)
    told = capsys.readouterr().out
    assert "3 missing, 1 finished" in " ".join(told.split())
    assert "reasoning/norm_softmax/seed=1" in told and "seed=2" not in told
    # It has only looked.
    assert not (tmp_path / ".sweeps").exists()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["softmax=softmax,norm_softmx"], "softmax=norm_softmx does not exist; did you mean 'norm_softmax'"),
        (["softmax=nope,softmax"], "softmax=nope does not exist"),
        (["experiment=reasoning", "seeds=[1,1],[2]"], "seeds=[1, 1] is wrong"),
        (["--config-dir", "/nowhere", "seed=1,2"], "--config-dir /nowhere is no folder"),
    ],
)
def test_a_plan_of_something_wrong_is_refused(overrides: list[str], words: str, status, capsys) -> None:
    with pytest.raises(SystemExit, match="1"):
        status("--plan", *overrides)
    told = capsys.readouterr().err
    assert told.startswith("error: ") and words in told and told.count("\n") == 1


def test_a_plan_has_its_folder_of_runs_already(status, capsys) -> None:
    with pytest.raises(SystemExit):
        status("elsewhere", "--plan", "seed=0,1")
    assert "folder of planned runs with paths.runs=" in capsys.readouterr().err


def test_a_plan_knows_the_seeds_of_an_experiment_that_is_swept_over(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    for name, own in (("two", "seeds: 2"), ("seventh", "seed: 7")):
        text = f"# @package _global_\ndefaults: [reasoning_small, _self_]\n{own}\n"
        (tmp_path / "experiment" / f"{name}.yaml").write_text(text)
    asked = ["--config-dir", str(tmp_path), "experiment=two,seventh,reasoning_small", f"paths.runs={tmp_path}"]
    _, runs = planned_runs(asked)
    names = ["two/softmax/seed=0", "two/softmax/seed=1", "seventh/softmax/seed=7", "reasoning_small/softmax/seed=0"]
    assert runs == [tmp_path / name for name in names]
    _, runs = planned_runs([*asked, "seed=3"])
    assert [run.name for run in runs] == ["seed=3", "seed=4", "seed=3", "seed=3"]


def test_a_search_has_no_plan(status, capsys) -> None:
    pytest.importorskip("optuna")
    with pytest.raises(SystemExit, match="1"):
        status("--plan", "+sweep=search")
    assert "a search chooses its runs as it goes" in capsys.readouterr().err
