"""What is submitted to SLURM and how its jobs are followed, without a SLURM; with one: tests/test_slurm.py."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import python, write_a_summary
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import OmegaConf
from submitit.slurm.slurm import SlurmJob

from lab.config.compose import CONFIGS, compose_config
from lab.console import LabError, Unfinished
from lab.runs import slurm
from lab.signals import handling, signal_name
from lab.sweeps import jobs
from lab.sweeps.launcher import SlurmLauncher, _leave, _Run
from lab.train import run as train_with
from lab.training.ending import ended_by_signals
from scripts.process import finding

SWEEP = ("-m", "experiment=reasoning", "data.numbers=4", "seed=0,1", "hydra/launcher=submitit_slurm")
OPEN = {**dict.fromkeys(["nodes", "tasks_per_node", "gpus_per_node", "gpus_per_task", "gres"]), "setup": []}


def sweep_with(sbatch: str, folder: Path, *overrides: str) -> subprocess.CompletedProcess:
    """A sweep on a login node whose sbatch is this script."""
    tools = folder / "bin"
    tools.mkdir()
    for name, body in {"sbatch": sbatch, "srun": "exit 0", "squeue": "exit 0"}.items():
        (tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (tools / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    return python("-m", "lab.train", *SWEEP, *overrides, folder=folder, check=False, environment=environment)


@pytest.mark.parametrize(
    ("overrides", "needed"),
    [
        (["trainer=cpu"], (1, 1, None)),
        (["trainer=gpu"], (1, 1, 1)),
        (["trainer=ddp", "trainer.devices=4"], (1, 4, 4)),
        (["trainer=ddp", "trainer.devices=[0,2]", "trainer.num_nodes=2"], (2, 2, 2)),
        (["trainer=ddp", "trainer.devices='0,1'"], (1, 2, 2)),
        (["trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2"], (1, 2, None)),
    ],
)
def test_a_job_asks_for_what_the_trainer_needs(overrides: list[str], needed: tuple[int, int, int | None]) -> None:
    trainer = compose_config(overrides).trainer
    found = jobs.with_resources(OPEN, trainer)
    assert (found["nodes"], found["tasks_per_node"], found["gpus_per_node"]) == needed
    assert jobs.with_resources({**OPEN, "gpus_per_node": 8}, trainer)["gpus_per_node"] == 8
    assert jobs.with_resources({**OPEN, "gres": "gpu:h200:1"}, trainer)["gpus_per_node"] is None


def test_lines_before_a_run_may_be_one() -> None:
    trainer = compose_config(["trainer=cpu"]).trainer
    for setup in ("module load cuda", ["module load cuda"]):
        assert jobs.with_resources({**OPEN, "setup": setup}, trainer)["setup"][1:] == ["module load cuda"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"array_parallelism": "abc"}, "array_parallelism=abc is wrong: give a whole number"),
        ({"max_num_timeout": "abc"}, "max_num_timeout=abc is wrong"),
        ({"timeout_min": 2.5}, "timeout_min=2.5 is wrong"),
        ({"timeout_min": 3}, "timeout_min=3 leaves a job no time"),
    ],
)
def test_numbers_that_would_break_a_job_later_are_refused(given: dict[str, Any], said: str) -> None:
    numbers = {"array_parallelism": 64, "max_num_timeout": 100, "timeout_min": 4, "signal_delay_s": 120}
    jobs.check_numbers(numbers)
    with pytest.raises(LabError, match=re.escape(said)):
        jobs.check_numbers({**numbers, **given})


def test_a_job_of_other_overrides_is_known(tmp_path: Path) -> None:
    run, job = tmp_path / "run", job_in(tmp_path / "logs", 4)
    jobs.note(run, job, ["seed=0", "optim.lr=0.1"])
    assert jobs.differ(run, ["optim.lr=0.1", "seed=0"]) == []
    assert jobs.differ(run, ["optim.lr=0.1", "seed=0", "force=true"]) == ["force=true"]
    (run / jobs.JOB).write_text(json.dumps({"job": "9_4", "folder": "x"}))
    assert jobs.differ(run, ["force=true"]) == [], "noted before overrides were"


def test_devices_auto_needs_a_number() -> None:
    trainer = OmegaConf.create({"devices": "auto", "num_nodes": 1, "accelerator": "gpu"})
    with pytest.raises(LabError, match=r"give hydra\.launcher\.gpus_per_node=4"):
        jobs.with_resources(OPEN, trainer)
    assert jobs.with_resources({**OPEN, "gpus_per_node": 4}, trainer)["tasks_per_node"] == 4


def test_every_option_of_the_launcher_reaches_sbatch(tmp_path: Path) -> None:
    given = {
        "partition": "fast", "account": "lab", "qos": "high", "constraint": "h200", "exclude": "node13",
        "comment": "eureka", "gres": "gpu:h200:1", "cpus_per_task": "3", "mem_gb": "7", "timeout_min": "77",
        "signal_delay_s": "55", "array_parallelism": "5", "gpus_per_node": "1", "nodes": "1", "tasks_per_node": "1",
        "cpus_per_gpu": "6", "gpus_per_task": "1", "mem_per_cpu": "2GB", "mem_per_gpu": "9GB", "name": "mine",
    }  # fmt: skip
    options = [f"hydra.launcher.{key}={value}" for key, value in given.items()]
    options.append('hydra.launcher.setup=["module load cuda"]')
    done = sweep_with('cp "$1" script; echo "Batch job submission failed" >&2; exit 1', tmp_path, *options)
    assert done.returncode == 1
    assert "error: SLURM does not take the jobs: Batch job submission failed" in done.stderr
    assert "Traceback" not in done.stderr
    script = (tmp_path / "script").read_text()
    assert "#SBATCH --array=0-1%2\n" in script and "#SBATCH --signal=USR2@55\n" in script
    assert "#SBATCH --requeue\n" in script and "#SBATCH --open-mode=append\n" in script
    assert 'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"; fi\nmodule load cuda\n' in script
    words = {
        "cpus_per_task": "3", "time": "77", "mem": "7GB", "job_name": "mine", "ntasks_per_node": "1", "nodes": "1",
        **{key: given[key] for key in given.keys() - {"timeout_min", "mem_gb", "name", "tasks_per_node",
                                                      "signal_delay_s", "array_parallelism"}},
    }  # fmt: skip
    for key, value in words.items():
        assert f"#SBATCH --{key.replace('_', '-')}={value}\n" in script, key
    # What stands in the ready config is all there is to give.
    ready = OmegaConf.load(CONFIGS / "hydra" / "launcher" / "slurm.yaml")
    other = {"_target_", "submitit_folder", "stderr_to_stdout", "max_num_timeout", "setup", "additional_parameters"}
    assert set(map(str, ready)) == given.keys() | other


def test_without_slurm_the_launcher_says_so(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = python("-m", "lab.train", *SWEEP, folder=tmp_path, check=False, environment=environment)
    assert done.returncode == 1
    assert "error: SLURM does not take the jobs" in done.stderr and "Traceback" not in done.stderr


def test_without_submitit_the_launcher_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "submitit.py").write_text("raise ModuleNotFoundError('none', name='submitit')")
    done = python("-m", "lab.train", *SWEEP, folder=tmp_path, check=False, environment=finding(tmp_path))
    assert done.returncode == 1
    assert "needs submitit, which is not installed: pip install 'eureka-lab[slurm]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RESULT_INTERVAL", "QUEUE_INTERVAL", "RESULT_TIMEOUT"):
        monkeypatch.setattr(jobs, name, 0.02)


def job_in(folder: Path, number: int) -> SlurmJob:
    job = SlurmJob(folder / "%j", f"9_{number}")
    job.paths.folder.mkdir(parents=True)
    return job


def end(job: SlurmJob) -> None:
    job.paths.result_pickle.write_bytes(pickle.dumps(("success", 1)))


def test_jobs_are_followed_by_their_results_and_the_queue(tmp_path: Path, quick: None, monkeypatch) -> None:
    every = {number: job_in(tmp_path, number) for number in range(3)}
    end(every[2])
    # Job 0 leaves the queue without a result. Job 1 is away for a moment while it is queued again; then SLURM does not
    # answer, which says nothing of it; at last it leaves a result.
    second: dict[str, str | None] = {"9_1": None}
    answers: list[dict[str, str | None] | None] = [{"9_0": None, **second}, second, {}, second, second, *[None] * 4]

    def queued() -> dict[str, str | None] | None:
        if not answers:
            end(every[1])
            return second
        return answers.pop(0)

    monkeypatch.setattr(slurm, "queued", queued)
    monkeypatch.setattr(jobs, "RESULT_TIMEOUT", 0.1)
    ended = [(number, jobs.has_result(job)) for number, job in jobs.as_they_end(every)]
    assert ended == [(2, True), (0, False), (1, True)]


def test_a_job_of_an_earlier_command_is_found_again(tmp_path: Path, quick: None, monkeypatch) -> None:
    run, job = tmp_path / "run", job_in(tmp_path / "logs", 4)
    assert jobs.find([run]) == {}
    jobs.note(run, job, [])
    monkeypatch.setattr(slurm, "queued", lambda: {"9_4": "Priority"})
    found = jobs.find([tmp_path / "another", run])
    assert list(found) == [run]
    assert (found[run].job_id, found[run].paths.stdout) == (job.job_id, job.paths.stdout)
    monkeypatch.setattr(slurm, "queued", lambda: {"9_5": None})
    assert jobs.find([run]) == {}
    # A number that SLURM has given away anew, of a job that has ended here.
    end(job)
    monkeypatch.setattr(slurm, "queued", lambda: {"9_4": None})
    assert jobs.find([run]) == {}


def test_a_note_of_somebody_else_is_no_job(tmp_path: Path, monkeypatch) -> None:
    run, job = tmp_path / "run", job_in(tmp_path / "logs", 4)
    jobs.note(run, job, [])
    assert list(jobs.left_open([run])) == [run]
    with monkeypatch.context() as another:
        another.setattr(jobs.os, "getuid", lambda: 2**30)
        assert jobs.left_open([run]) == {}
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "nowhere", "~nobodyx/y"):
        (run / jobs.JOB).write_text(json.dumps({"job": "9_4", "folder": str(folder)}))
        assert jobs.left_open([run]) == {}


def test_a_job_is_not_submitted_twice_while_slurm_does_not_answer(tmp_path: Path, quick: None, monkeypatch) -> None:
    run, job = tmp_path / "run", job_in(tmp_path / "logs", 4)
    jobs.note(run, job, [])
    monkeypatch.setattr(jobs.shutil, "which", lambda name: f"/usr/bin/{name}")
    answers = [None, None, {"9_4": None}]
    monkeypatch.setattr(slurm, "queued", lambda: answers.pop(0))
    assert list(jobs.find([run])) == [run]
    monkeypatch.setattr(slurm, "queued", lambda: None)
    monkeypatch.setattr(jobs, "QUEUE_TIMEOUT", 0.1)
    with pytest.raises(LabError, match=r"squeue does not answer, so that job 9_4 of an earlier command may still"):
        jobs.find([run])


def run_of(folder: Path, number: int, **asks: int) -> _Run:
    return _Run(number, [f"seed={number}"], [folder / f"seed={number}"], force=False, asks=asks)


def test_seeds_together_wait_for_no_job_of_one_of_them_alone(tmp_path: Path) -> None:
    folders = [tmp_path / f"seed={number}" for number in range(3)]
    run = _Run(0, ["seeds=3"], folders, force=False, asks={})
    one, other = job_in(tmp_path / "logs", 1), job_in(tmp_path / "logs", 2)
    assert SlurmLauncher._job_of(run, {}) is None
    assert SlurmLauncher._job_of(run, dict.fromkeys(folders, one)) is one
    write_a_summary(folders[2])
    assert SlurmLauncher._job_of(run, dict.fromkeys(folders[:2], one)) is one
    with pytest.raises(LabError, match=r"seed=0 is job 9_1 already, from another command: let such jobs end"):
        SlurmLauncher._job_of(run, {folders[0]: one})
    with pytest.raises(LabError, match="seed=0 is job 9_1, seed=1 is job 9_2 already"):
        SlurmLauncher._job_of(run, {folders[0]: one, folders[1]: other})


def test_a_run_that_ends_while_jobs_are_looked_up_is_finished(tmp_path: Path, monkeypatch, capsys) -> None:
    run = run_of(tmp_path, 0)

    def find_nothing(folders: object) -> dict:
        write_a_summary(run.folders[0])
        return {}

    monkeypatch.setattr(jobs, "find", find_nothing)
    monkeypatch.setattr(SlurmLauncher, "_runs", lambda *_: [run])
    monkeypatch.setattr(SlurmLauncher, "_run_here", lambda *_: JobReturn(status=JobStatus.COMPLETED))
    launcher = SlurmLauncher()
    launcher.config = OmegaConf.create({"paths": {"runs": str(tmp_path)}})
    assert len(launcher._launch([], 0)) == 1
    assert "1 runs: 1 finished, 0 queued or running already, 0 to submit" in capsys.readouterr().err


def test_runs_that_ask_for_the_same_are_one_array(tmp_path: Path, monkeypatch) -> None:
    arrays = []

    def submit(self: SlurmLauncher, runs: list[_Run]) -> list[SlurmJob]:
        arrays.append([run.number for run in runs])
        return [job_in(tmp_path / "logs", run.number) for run in runs]

    monkeypatch.setattr(SlurmLauncher, "_submit_array", submit)
    runs = [run_of(tmp_path, number, gpus_per_node=number % 2) for number in range(4)]
    submitted = SlurmLauncher()._submit(runs)
    assert arrays == [[0, 2], [1, 3]]
    monkeypatch.setattr(slurm, "queued", lambda: {"9_3": ""})
    (found,) = jobs.find(run.folders[0] for run in runs).values()
    assert found.job_id == submitted[3].job_id == "9_3"


def test_of_two_sweeps_at_the_same_moment_the_second_finds_what_the_first_has_submitted(
    tmp_path: Path, monkeypatch
) -> None:
    run, queue, submitted = run_of(tmp_path, 0), {}, []

    def submit(self: SlurmLauncher, runs: list[_Run]) -> list[SlurmJob]:
        time.sleep(0.3)
        submitted.extend(runs)
        queue.update({"9_0": ""})
        return [job_in(tmp_path / "logs", one.number) for one in runs]

    monkeypatch.setattr(SlurmLauncher, "_runs", lambda *_: [run])
    monkeypatch.setattr(SlurmLauncher, "_submit_array", submit)
    monkeypatch.setattr(slurm, "queued", lambda: dict(queue))
    monkeypatch.setattr(jobs, "as_they_end", lambda every: ())

    def sweep() -> None:
        launcher = SlurmLauncher()
        launcher.config = OmegaConf.create({"paths": {"runs": str(tmp_path)}})
        with suppress(KeyError):  # nobody waits for the end
            launcher._launch([], 0)

    commands = [threading.Thread(target=sweep) for _ in range(2)]
    for command in commands:
        command.start()
    for command in commands:
        command.join()
    assert submitted == [run]


def test_every_seed_of_a_run_notes_its_job(tmp_path: Path, monkeypatch) -> None:
    run = _Run(0, ["seeds=2"], [tmp_path / "seed=0", tmp_path / "seed=1"], force=False, asks={})
    monkeypatch.setattr(SlurmLauncher, "_submit_array", lambda *_: [job_in(tmp_path / "logs", 0)])
    SlurmLauncher()._submit([run])
    assert [job.job_id for job in jobs.left_open(run.folders).values()] == ["9_0", "9_0"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_every_submitted_job_is_noted(tmp_path: Path, monkeypatch, number: int) -> None:
    noted = []

    def note(folder: Path, job: SlurmJob, overrides: list[str]) -> None:
        signal.raise_signal(number)
        noted.append(folder)

    monkeypatch.setattr(SlurmLauncher, "_submit_array", lambda self, runs: [job_in(tmp_path, r.number) for r in runs])
    monkeypatch.setattr(jobs, "note", note)
    runs = [run_of(tmp_path, number) for number in range(3)]
    with pytest.raises(KeyboardInterrupt), handling(_leave, number):
        SlurmLauncher()._submit(runs)
    assert noted == [folder for run in runs for folder in run.folders]


def test_how_a_job_ended_is_told_in_one_sentence(tmp_path: Path) -> None:
    launcher, run = SlurmLauncher(), run_of(tmp_path, 0)
    finished, broken, killed = (job_in(tmp_path, number) for number in range(3))
    done = JobReturn(status=JobStatus.COMPLETED, _return_value=0.5)
    finished.paths.result_pickle.write_bytes(pickle.dumps(("success", done)))
    assert launcher._end_of(run, finished).return_value == 0.5
    broken.paths.result_pickle.write_bytes(pickle.dumps(("error", "Traceback ...\nImportError: no lab\n")))
    assert str(launcher._end_of(run, broken)._return_value) == "job 9_1 failed: ImportError: no lab"
    end = launcher._end_of(run, killed)
    assert end.status == JobStatus.FAILED
    assert "job 9_2 was cancelled, killed or out of memory" in str(end._return_value)
    assert "summary says not begun" in str(end._return_value)
    assert isinstance(end._return_value, Unfinished)


def test_the_queue_is_asked_for_this_user_s_jobs_one_by_one(tmp_path: Path, monkeypatch) -> None:
    said = "12_3|R|None", "12_4|PD|Resources", "13|PD|None", "14|PD|ReqNodeNotAvail, UnavailableNodes:a|b", "15|CG|None"
    lines = "\n".join(f"echo '{line}'" for line in said)
    (tmp_path / "squeue").write_text(f'#!/bin/sh\n[ "$*" = "--me --noheader --array --format=%i|%t|%r" ]\n{lines}\n')
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    waits = {"12_4": "Resources", "13": "", "14": "ReqNodeNotAvail, UnavailableNodes:a|b"}
    assert slurm.queued() == {"12_3": None, **waits, "15": None}
    (tmp_path / "squeue").write_text("#!/bin/sh\nexit 1\n")
    assert slurm.queued() is None
    (tmp_path / "squeue").write_text("#!/bin/sh\nexec sleep 60\n")
    begun = time.monotonic()
    assert slurm.queued(timeout=0.2) is None
    assert time.monotonic() - begun < 30


def test_a_job_that_may_wait_for_ever_is_told_of_once(tmp_path: Path, quick: None, monkeypatch, capsys) -> None:
    every = {number: job_in(tmp_path, number) for number in range(4)}
    stuck: dict[str, str | None] = {"9_0": "PartitionConfig", "9_1": "PartitionConfig", "9_2": "Priority", "9_3": None}
    answers: list[dict[str, str | None]] = [
        {**stuck, "9_0": ""},
        stuck,
        stuck,
        {"9_0": "BadConstraints", "9_1": "QOSMaxWallDurationPerJobLimit"},
    ]

    def queued() -> dict[str, str | None]:
        if not answers:
            for job in every.values():
                end(job)
            return {}
        return answers.pop(0)

    monkeypatch.setattr(slurm, "queued", queued)
    assert len(list(jobs.as_they_end(every))) == 4
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(
        "job 9_1 waits, maybe for ever: SLURM says PartitionConfig. Look at hydra.launcher.cpus_per_"
    )
    assert first.endswith("To change it: Ctrl-C, scancel 9, and the command with another value")
    assert "SLURM says QOSMaxWallDurationPerJobLimit. Look at hydra.launcher.timeout_min. " in second


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("BadConstraints", "constraint"),
        ("PartitionTimeLimit", "timeout_min"),
        ("AssocMaxWallDurationPerJobLimit", "timeout_min"),
        ("PartitionNodeLimit", "nodes"),
        ("PartitionDown", "sinfo"),
        ("ReqNodeNotAvail, UnavailableNodes:node13", "sinfo -R"),
        ("Nodes required for job are DOWN, DRAINED or reserved", "sinfo -R"),
        ("InvalidAccount", "account and qos"),
        ("InvalidQOS", "account and qos"),
        ("AssocGrpCPUMinutesLimit", "account and qos"),
        ("QOSMaxCpuPerJobLimit", "cpus_per_task"),
        ("QOSMaxMemoryPerJob", "mem_gb"),
        ("QOSMinGRES", "qos"),
        ("MaxMemPerLimit", "mem_gb"),
        ("JobHeldUser", "scontrol release"),
        ("launch failed requeued held", "scontrol release"),
        ("DependencyNeverSatisfied", "additional_parameters"),
    ],
)
def test_each_reason_that_stays_names_what_to_look_at(reason: str, words: str) -> None:
    assert words in jobs.advice(reason)
    settings = set(re.findall(r"[a-z]+_[a-z_]+", jobs.advice(reason).replace("hydra.launcher.", "")))
    assert settings <= set(map(str, OmegaConf.load(CONFIGS / "hydra" / "launcher" / "slurm.yaml")))


@pytest.mark.parametrize(
    "reason",
    ["Priority", "Resources", "BeginTime", "JobArrayTaskLimit", "Dependency", "Reservation", "Licenses", "Cleaning",
     "QOSGrpCpuLimit", "QOSMaxJobsPerUserLimit", "AssocGrpNodeLimit", ""],
)  # fmt: skip
def test_a_reason_that_passes_is_not_told(reason: str) -> None:
    assert jobs.advice(reason) is None


def test_a_job_knows_its_name(monkeypatch) -> None:
    for name in ("SLURM_ARRAY_JOB_ID", "SLURM_JOB_ID", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    assert slurm.job() is None and slurm.restarts() == 0
    monkeypatch.setenv("SLURM_JOB_ID", "15")
    assert slurm.job() == "15"
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "12")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    assert slurm.job() == "12_3" and slurm.restarts() == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=signal_name)
def test_a_command_that_no_longer_waits_says_that_its_jobs_go_on(monkeypatch, capsys, number: int) -> None:
    monkeypatch.setattr(SlurmLauncher, "_launch", lambda *_: signal.raise_signal(number))
    with pytest.raises(SystemExit, match=str(128 + number)):
        SlurmLauncher().launch([], 0)
    assert capsys.readouterr().err.startswith("\nThe jobs go on: python -m lab.status shows them")


def test_a_job_hears_sigterm_while_it_loads(monkeypatch) -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # as submitit passes it over
    monkeypatch.setattr(SlurmLauncher.__base__, "__call__", lambda self: signal.getsignal(signal.SIGTERM))
    try:
        assert SlurmLauncher()() is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM], ids=signal_name)
def test_a_second_signal_does_not_break_off_what_the_first_ends(first: signal.Signals, capfd) -> None:
    """scancel comes twice, and SIGTERM of a script that trains after its Ctrl-C."""
    ended = []
    with pytest.raises(SystemExit, match=str(128 + first)), ended_by_signals():
        try:
            signal.raise_signal(first)
        finally:
            signal.raise_signal(signal.SIGTERM)
            ended.append(True)
    assert ended and capfd.readouterr().err == f"\n{signal_name(first)}: ended\n"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_within_a_finaliser_ends_the_program_too(capfd) -> None:
    """Python swallows what is raised there; the program would go on, and be deaf to further signals."""

    class Finalised:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    hook, ended = sys.unraisablehook, []
    # In the block, and at its end; a second signal breaks nothing off, as after one that is not swallowed.
    for seconds in (60, 0):
        with pytest.raises(SystemExit, match=f"^{128 + signal.SIGINT}$"), ended_by_signals():
            try:
                Finalised()
                time.sleep(seconds)
            finally:
                signal.raise_signal(signal.SIGTERM)
                ended.append(seconds)
        assert capfd.readouterr().err == "\nCtrl-C: ended\n"
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler and sys.unraisablehook is hook
    assert ended == [60, 0]


def test_a_job_that_is_queued_again_begins_anew_only_once(tmp_path: Path, monkeypatch, capsys) -> None:
    """force=true, and SLURM starts the same job a second time: what it has begun is not set aside by itself."""
    command = ["experiment=reasoning", "data.numbers=4", "trainer.max_epochs=3", "logger=csv_only", "threads=1"]
    forced = [*command, f"paths.runs={tmp_path}", "force=true"]
    train_with(forced[:-1])
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    # Queued again before it had begun: the run before is another job's.
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    train_with(forced)
    assert "the run before is kept" in capsys.readouterr().err
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    train_with(forced)
    assert "finished already" in capsys.readouterr().err
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    train_with(forced)
    assert "the run before is kept" in capsys.readouterr().err
    assert len(list(tmp_path.rglob("summary.json"))) == 3
