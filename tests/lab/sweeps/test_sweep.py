"""Sweeps on one machine: a run that fails takes no other down, and runs share the cores out."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import weakref
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from conftest import ROOT, runs_in, summary_of, told_to_end
from omegaconf import OmegaConf

from lab.console import Unfinished
from lab.signals import signal_name
from lab.sweeps import waiting
from lab.sweeps.waiting import ends_as_told
from lab.train import main
from lab.train import run as train_with
from lab.training import processes
from lab.training.start import share_of_threads

SWEEP = (
    "-m",
    "experiment=reasoning",
    "data.numbers=4",
    "callbacks=eureka",
    "logger=csv_only",
    "data.train_share=0.001,0.3",
)
# All that is read of the config of a sweep whose runs are side by side.
JOBLIB = OmegaConf.create({"hydra": {"runtime": {"choices": {"hydra/launcher": "joblib"}}}})
# What Hydra says of a job that failed.
HYDRAS_WORDS = ("Error executing job", "HYDRA_FULL_ERROR")
# A process group of its own, which takes a Ctrl-C as all that runs in a terminal does.


def test_runs_side_by_side_fail_alone_and_save_upon_ctrl_c(tmp_path: Path, monkeypatch, capsys, one_thread) -> None:
    """Of twelve runs six fail, three end, two are told to stop, and the last does not begin."""
    lasting = ("trainer.max_epochs=10,100000", "seed=0,1,2")
    side_by_side = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "checkpoints.every_minutes=60")

    def training(_: int) -> bool:
        return len(list(tmp_path.rglob("*max_epochs=100000*/*/checkpoints/best.ckpt"))) == 2

    said = told_to_end([*SWEEP, *lasting, *side_by_side], tmp_path, training, signal.SIGINT)
    assert said.count("error: data.train_share must leave inputs for training and validation, got 0.001") == 6
    # Its lines say of which run they are.
    of = dict(re.findall(r"^#(\d+): run folder: (.*)$", said, re.MULTILINE))
    steps = re.findall(r"^#(\d+): Ctrl-C: saved at step (\d+)", said, re.MULTILINE)
    assert {of[number]: int(step) for number, step in steps} == {
        str(path): summary_of(path)["steps"] for path in runs_in(tmp_path) if summary_of(path)["status"] == "stopped"
    }
    assert "Traceback" not in said and not any(words in said for words in HYDRAS_WORDS)
    summaries = [(path.parent, summary_of(path.parent)) for path in tmp_path.rglob("summary.json")]
    assert sorted(summary["status"] for _, summary in summaries) == [*["finished"] * 3, *["stopped"] * 2]
    assert all(summary["command"].startswith("python -m lab.train ") for _, summary in summaries)
    assert {summary["machine"]["threads"] for _, summary in summaries} == {max(1, (os.cpu_count() or 1) // 2)}
    for folder, summary in summaries:
        assert (folder / "checkpoints" / f"last-{summary['steps']:09d}.ckpt").exists()
    # Again, one after the other in this process: what is finished stays as it is, what failed runs.
    monkeypatch.chdir(tmp_path)
    same = ("trainer.max_epochs=10", "seed=0,1", "threads=1", "checkpoints.every_minutes=60")
    for launcher in ((), ("hydra/launcher=joblib", "hydra.launcher.n_jobs=1")):
        monkeypatch.setattr(sys, "argv", ["lab.train", *SWEEP, *same, *launcher])
        with pytest.raises(SystemExit, match=r"^1$"):
            main()
        again = capsys.readouterr().err
        assert again.count("finished already") == 2
        assert again.count("error: data.train_share must leave inputs for training and validation") == 2
        assert again.count("error: 2 of 4 runs did not finish: reasoning/softmax,callbacks=eureka,data.numbers=4,") == 1
        assert not any(words in again for words in HYDRAS_WORDS)


LOST = "A worker process managed by the executor was unexpectedly terminated"


def test_a_killed_process_of_a_sweep_is_told_with_what_is_left(tmp_path: Path, monkeypatch, capsys) -> None:
    """joblib ends the others, and raises this."""

    def launch(*_: Any, **__: Any) -> None:
        raise BrokenProcessPool(f"{LOST}. This could be caused by a segmentation fault")

    monkeypatch.chdir(tmp_path)
    short = [*SWEEP[1:-1], "trainer.max_epochs=1"]
    train_with([*short, "threads=1"])
    monkeypatch.setattr(import_module("hydra_plugins.hydra_joblib_launcher._core"), "launch", launch)
    monkeypatch.setattr(sys, "argv", ["lab.train", "-m", *short, "seed=0,1", "hydra/launcher=joblib", "threads=1"])
    capsys.readouterr()
    with pytest.raises(SystemExit, match=r"^1$"):
        main()
    told, last = capsys.readouterr().err.splitlines()
    assert told == f"a process of this sweep was lost ({LOST}; lack of memory, for one), and those beside it were ended"
    name = "reasoning/softmax,callbacks=eureka,data.numbers=4,trainer.max_epochs=1/seed="
    assert last == f"error: 1 of 2 runs did not finish: {name}1. The same command runs what is missing."
    # What is finished already is not missing, though it is of another configuration.
    config = tmp_path / "runs" / f"{name}0" / "config.yaml"
    config.write_text(config.read_text().replace("weight_decay: ", "weight_decay: 1"))
    monkeypatch.setattr(sys, "argv", ["lab.train", "-m", *short, "seed=0", "threads=1"])
    with pytest.raises(SystemExit, match=r"^1$"):
        main()
    refused, last = capsys.readouterr().err.splitlines()
    assert "holds a run of another configuration (optim.weight_decay" in refused
    assert last == f"error: 1 of 1 runs refused, as their folders hold runs of another configuration: {name}0"


@pytest.mark.parametrize("begun", [False, True], ids=["before its runs begin", "while they train"])
def test_a_sweep_of_processes_waits_upon_sigterm_until_its_runs_have_saved(tmp_path: Path, begun: bool) -> None:
    lasting = ("data.train_share=0.3", "trainer.max_epochs=100000", "seed=0,1", "checkpoints.every_minutes=60")
    side_by_side = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")

    def ready(sweep: int) -> bool:
        return len(list(tmp_path.rglob("best.ckpt")) if begun else workers_of(sweep)) == 2

    said = told_to_end([*SWEEP[:-1], *lasting, *side_by_side], tmp_path, ready, signal.SIGTERM, group=False)
    line = "SIGTERM: the runs save before they go, and the sweep with them; SIGTERM again ends all at once"
    assert said.count(line) == 1
    assert "Traceback" not in said and "Warning" not in said and not any(words in said for words in HYDRAS_WORDS)
    assert said.count("SIGTERM: saved at step") == said.count("told to end: the same command") == 2 * begun
    assert [summary_of(run)["status"] for run in runs_in(tmp_path)] == ["stopped"] * 2 * begun


def workers_of(sweep: int) -> list[psutil.Process]:
    """Processes in which joblib is to run the jobs of a sweep."""
    with suppress(psutil.NoSuchProcess):
        return [one for one in psutil.Process(sweep).children() if any("popen_loky" in word for word in one.cmdline())]
    return []


class Lost:
    """Something that goes while others know of it."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=signal_name)
def test_a_worker_ends_its_run_as_told_and_begins_no_other(monkeypatch, number: int) -> None:
    own = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(processes.multiprocessing, "parent_process", object)
    try:
        for _ in range(2):
            monkeypatch.setattr(processes, "_told", False)
            with processes.ended_with_parent():
                pass
            with pytest.raises(Unfinished, match="told to end"), processes.ended_with_parent():
                try:
                    os.kill(os.getpid(), number)
                finally:
                    # The sweep's own, after a terminal's Ctrl-C: what the first began is not broken off.
                    os.kill(os.getpid(), signal.SIGTERM)
            with pytest.raises(Unfinished, match="not begun"), processes.ended_with_parent():
                pass
        # Between two runs, when joblib would kill the other workers if this one ended.
        monkeypatch.setattr(processes, "_told", False)
        with processes.ended_with_parent():
            pass
        os.kill(os.getpid(), number)
        with pytest.raises(Unfinished, match="not begun"), processes.ended_with_parent():
            pass
        # Within a finaliser, in which Python swallows what is raised; the sweep's own comes later.
        monkeypatch.setattr(processes, "_told", False)
        with pytest.raises(Unfinished, match="told to end"), processes.ended_with_parent():
            kept = weakref.ref(lost := Lost(), lambda _: os.kill(os.getpid(), number))
            del lost
            time.sleep(60 if kept() is None else 0)
        os.kill(os.getpid(), signal.SIGTERM)
        # At the very beginning of a run, and at its very end.
        monkeypatch.setattr(processes, "_told", False)
        with monkeypatch.context() as patched, pytest.raises(Unfinished, match="told to end"):
            patched.setattr(processes.threading.Thread, "start", lambda self: os.kill(os.getpid(), number))
            with processes.ended_with_parent():
                pytest.fail("the run has begun")
        monkeypatch.setattr(processes, "_told", False)
        with pytest.raises(Unfinished, match="told to end"), processes.ended_with_parent():
            monkeypatch.setattr(processes, "_set_handlers", lambda handler: os.kill(os.getpid(), number))
        with pytest.raises(Unfinished, match="not begun"), processes.ended_with_parent():
            pass
    finally:
        for one, handler in own.items():
            signal.signal(one, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=signal_name)
def test_a_signal_to_the_sweep_alone_ends_its_workers(monkeypatch, capfd, number: int) -> None:
    told: list[str] = []
    workers = [SimpleNamespace(terminate=lambda name=name: told.append(name)) for name in "ab"]
    monkeypatch.setattr(waiting.multiprocessing, "active_children", lambda: workers)
    with pytest.raises(SystemExit, match=str(128 + number)), ends_as_told(JOBLIB):
        os.kill(os.getpid(), number)
        assert told == ["a", "b"]
    assert capfd.readouterr().err.count("the runs save before they go") == 1


def test_ctrl_c_ends_a_sweep_at_once_whose_runs_are_in_this_process(capfd) -> None:
    with pytest.raises(SystemExit, match=str(128 + signal.SIGINT)), ends_as_told(JOBLIB):
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("it goes on")
    assert capfd.readouterr().err == "\nCtrl-C: ended\n"


def test_cores_are_shared_out_among_the_jobs_of_a_machine(monkeypatch) -> None:
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)
    cores = os.cpu_count() or 1
    assert share_of_threads(-1) == 1
    assert share_of_threads(1) == cores
    assert share_of_threads(10 * cores) == 1
    assert share_of_threads(None) is None


def test_a_slurm_job_takes_the_cpus_that_it_was_given(monkeypatch) -> None:
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "12")
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "4")
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    assert share_of_threads(None) == 3
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "6")
    assert share_of_threads(None) == 6
    assert share_of_threads(2) == 3


ORPHAN = """
import multiprocessing, os, signal, sys, time
from pathlib import Path

def work(folder):
    from lab.training import processes
    processes._LOOK = 0.05
    signal.signal(signal.SIGTERM, lambda *_: (folder / "saved").touch())
    with processes.ended_with_parent():
        (folder / "worker").write_text(str(os.getpid()))
        while not (folder / "saved").exists():
            time.sleep(0.01)
        time.sleep(0.2)
        (folder / "left").touch()
    time.sleep(60)

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    multiprocessing.get_context("spawn").Process(target=work, args=(folder,)).start()
    while not (folder / "worker").exists():
        time.sleep(0.01)
    os._exit(0)
"""


def test_a_worker_whose_parent_is_gone_saves_and_leaves(tmp_path: Path) -> None:
    (tmp_path / "orphan.py").write_text(ORPHAN)
    command = [sys.executable, str(tmp_path / "orphan.py"), str(tmp_path)]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=60, check=True)
    worker = int((tmp_path / "worker").read_text())
    end = time.monotonic() + 60
    while psutil.pid_exists(worker) and psutil.Process(worker).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end, "the worker stays"
        time.sleep(0.05)
    assert (tmp_path / "saved").exists() and (tmp_path / "left").exists()
