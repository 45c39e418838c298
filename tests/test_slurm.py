"""Sweeps on a real SLURM: jobs that are killed, cancelled and queued again, as a cluster does it to everyone.

One node is enough. Without SLURM they are skipped; .ci/run starts one where it can.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import ROOT, Process, summary_of

from lab.runs.lock import read_holder
from lab.runs.metrics import read_metrics
from lab.sweeps.status import Gathering
from lab.train import run as train_with
from scripts.process import finding

# A wait ends as soon as what it waits for is there; this long it is only where something is wrong.
TIMEOUT = 600
SMALL = ("experiment=reasoning", "data.numbers=4", "trainer.max_epochs=400", "logger=csv_only", "checkpoints.keep=3")
LAUNCHER = (
    "hydra/launcher=submitit_slurm",
    "hydra.launcher.cpus_per_task=1",
    "hydra.launcher.mem_gb=1",
    "hydra.launcher.timeout_min=20",
)

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]


@pytest.fixture(autouse=True, scope="module")
def cluster() -> None:
    """Skips where no SLURM answers."""
    if shutil.which("sinfo") is None:
        pytest.skip("no SLURM on this machine: sinfo is not installed")
    nodes = subprocess.run(["sinfo", "--noheader", "--format=%T"], capture_output=True, text=True, timeout=60)
    if nodes.returncode or not {"idle", "mixed", "allocated"} & set(nodes.stdout.split()):
        pytest.skip(f"no SLURM that takes jobs: sinfo says {(nodes.stdout + nodes.stderr).strip()!r}")


class Sweep:
    """``python -m lab.train -m`` in a folder, as a person types it, and the jobs that it has submitted."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        self.folder = folder
        self.words = ["-m", "lab.train", "-m", *SMALL, *overrides, *LAUNCHER]
        self.process: Process | None = None
        self.said = folder / "said"

    def start(self) -> None:
        self.said.write_text("")
        files = (self.said, self.said)
        # What the checkout holds, not what happens to be installed.
        self.process = Process(*self.words, folder=self.folder, environment=finding(ROOT), files=files)

    def end(self) -> tuple[int, str]:
        """Exit status and what was said, once the command has ended."""
        assert self.process is not None
        self.until(lambda: self.process.poll() is not None, "the command to end")
        return self.process.returncode, self.said.read_text()

    def run(self, softmax: str, seed: int) -> Path:
        name = ",".join([softmax, *sorted(o for o in SMALL if not o.startswith(("experiment", "logger", "check")))])
        return self.folder / "runs" / "reasoning" / name / f"seed={seed}"

    def job(self, run: Path) -> str:
        holder = read_holder(run)
        assert holder is not None and holder.job is not None, self.logs()
        return holder.job

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            assert time.monotonic() < deadline, f"waited {TIMEOUT} s for {what}\n{self.logs()}"
            time.sleep(0.1)

    def disturb(self, deeds: dict[Path, Callable[[Path], object]]) -> None:
        """Does to each run what is given, as soon as it runs and has saved."""
        left = dict(deeds)

        def all_done() -> bool:
            for run in list(left):
                if list(run.glob("checkpoints/last-*.ckpt")) and read_holder(run):
                    left.pop(run)(run)
            return not left

        self.until(all_done, "the runs to save")

    def logs(self) -> str:
        queue = subprocess.run(["squeue", "--long"], capture_output=True, text=True).stdout
        logs = [f"== {path}\n{path.read_text()[-1500:]}" for path in sorted(self.folder.rglob("*_log.out"))]
        return "\n".join([self.said.read_text(), queue, *logs])

    def cancel(self) -> None:
        """Leaves nothing behind, whatever has happened."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
        jobs = {path.name.split("_")[0] for path in self.folder.glob("runs/.sweeps/slurm/*")}
        subprocess.run(["scancel", *jobs], capture_output=True)


@pytest.fixture
def sweep(tmp_path: Path):
    """Starts a sweep: sweep(*overrides)."""
    started = []

    def start(*overrides: str) -> Sweep:
        started.append(Sweep(tmp_path, *overrides))
        started[-1].start()
        return started[-1]

    yield start
    for one in started:
        one.cancel()


def run_again_at_once(job: str, sweep: Sweep) -> None:
    """SLURM lets a requeued job wait for two minutes; a test need not."""

    def pending() -> bool:
        state = ["squeue", "--noheader", "--jobs", job, "--format=%T"]
        return "PENDING" in subprocess.run(state, capture_output=True, text=True).stdout

    sweep.until(pending, f"job {job} to be queued again")
    # The credential of a job that starts in the second in which its last one was revoked counts as revoked, too.
    time.sleep(1.1)
    subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], check=True)


def assert_like_undisturbed(run: Path, softmax: str, seed: int, folder: Path) -> None:
    """Weights and every logged number of the run are those of one that nobody disturbed, bit for bit."""
    train_with([*SMALL, f"softmax={softmax}", f"seed={seed}", f"paths.runs={folder}", "threads=1"])
    (whole,) = (path.parent for path in folder.rglob(f"{run.parent.name}/seed={seed}/summary.json"))
    newest = [torch.load(max(r.glob("checkpoints/last-*.ckpt")), weights_only=True) for r in (run, whole)]
    assert newest[0]["global_step"] == newest[1]["global_step"]
    for name, tensor in newest[0]["state_dict"].items():
        assert torch.equal(tensor, newest[1]["state_dict"][name]), name
    logged = [[_without_the_clock(row) for row in read_metrics(r / "metrics.csv")] for r in (run, whole)]
    assert [row for row in logged[0] if len(row) > 2] == [row for row in logged[1] if len(row) > 2]


def _without_the_clock(row: dict[str, float]) -> dict[str, float]:
    """Without how fast it went, which is logged so many steps after each start."""
    return {key: value for key, value in row.items() if "second" not in key}


def test_a_disturbed_sweep_ends_as_an_undisturbed_one(sweep, tmp_path: Path, one_thread) -> None:
    three = ("softmax=norm_softmax", "seed=0,1,2", "checkpoints.every_n_steps=20")
    first = sweep(*three)
    runs = [first.run("norm_softmax", seed) for seed in range(3)]
    killed, cancelled, requeued = runs
    job = ""

    def requeue(run: Path) -> None:
        nonlocal job
        job = first.job(run)
        subprocess.run(["scontrol", "requeue", job], check=True)

    first.disturb(
        {
            killed: lambda run: os.kill(read_holder(run).pid, signal.SIGKILL),
            cancelled: lambda run: subprocess.run(["scancel", first.job(run)], check=True),
            requeued: requeue,
        }
    )
    run_again_at_once(job, first)
    status, said = first.end()
    # The one queued again has ended well; what failed is named.
    assert status == 1, first.logs()
    assert [summary_of(run)["status"] for run in runs] == ["stopped", "stopped", "finished"], first.logs()
    assert "2 of 3 runs did not finish: " in said and "Traceback" not in said
    assert "Error executing job" not in said and "HYDRA_FULL_ERROR" not in said
    for run in (killed, cancelled):
        assert f"not finished: {'/'.join(run.parts[-3:])}: job " in said
    assert "SIGTERM: saved at step" in (tmp_path / f"runs/.sweeps/slurm/{job}/{job}_0_log.out").read_text()
    # The same command runs what is missing and nothing else.
    before = (requeued / "summary.json").read_bytes()
    again = sweep(*three)
    status, said = again.end()
    assert status == 0, again.logs()
    assert "3 runs: 1 finished, 0 queued or running already, 2 to submit" in said
    assert (requeued / "summary.json").read_bytes() == before
    assert all(summary_of(run)["status"] == "finished" for run in runs)
    going_on = [path for path in tmp_path.rglob("*_log.out") if "going on from" in path.read_text()]
    assert len(going_on) == 3, again.logs()
    for seed, run in enumerate(runs):
        assert_like_undisturbed(run, "norm_softmax", seed, tmp_path / "whole")


def test_a_job_that_waits_is_told_of_and_near_its_limit_saves_and_queues_itself_again(
    sweep, tmp_path: Path, one_thread
) -> None:
    """Saved by the signal alone; meanwhile the command is killed, and the same command waits for the job again."""
    setting = ("softmax=norm_softmax", "seed=5", "checkpoints.every_minutes=60")
    first = sweep(*setting, "+hydra.launcher.additional_parameters.hold=true")
    run = first.run("norm_softmax", 5)
    first.until(lambda: "maybe for ever" in first.said.read_text(), "the reason to be told")
    (found,) = Gathering(tmp_path / "runs").look()
    assert (found.status, found.folder) == ("queued", run), first.logs()
    job = found.reason.removeprefix("job ").removesuffix(": JobHeldUser")
    assert f"job {job} waits, maybe for ever: SLURM says JobHeldUser. Look at who holds it" in first.said.read_text()
    subprocess.run(["scontrol", "release", job], check=True)
    first.until(lambda: (run / "summary.json").exists() and read_holder(run), "the run to begin")
    assert first.said.read_text().count("maybe for ever") == 1
    first.process.kill()
    assert first.job(run) == job
    # The signal that SLURM sends as sbatch --signal has it, two minutes before the limit.
    subprocess.run(["scancel", "--signal=USR2", job], check=True)
    run_again_at_once(job, first)
    again = sweep(*setting)
    status, said = again.end()
    assert status == 0, again.logs()
    assert "1 queued or running already, 0 to submit" in said or "1 finished" in said
    log = next(tmp_path.rglob("*_log.out")).read_text()
    assert "SIGUSR2: saved at step" in log and "going on from" in log, again.logs()
    assert [run.status for run in Gathering(tmp_path / "runs").look()] == ["finished"]
    assert summary_of(run)["slurm_job"] == job
    assert_like_undisturbed(run, "norm_softmax", 5, tmp_path / "whole")
