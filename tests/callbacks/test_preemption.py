"""A run that is told to go saves first, and goes on from there as if nothing had been."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from conftest import SMALL, TWO_PROCESSES, Process, held_by, newest, runs_in, summary_of

from lab.callbacks.preemption import SIGNALS, Preemption
from lab.console import LabError
from lab.runs.lock import HOLDER, Holder
from lab.runs.metrics import read_metrics
from lab.signals import handling
from lab.train import run as train_with
from lab.training.module import TwoStepModule


class CompilerError(RuntimeError):
    """As torch.compile's."""


CompilerError.__module__ = "torch._inductor.exc"

COMMAND = (*SMALL, "threads=1", "logger=csv_only")


def train_in(folder: Path, *overrides: str) -> Path:
    """Trains in this process; the run folder of the first seed."""
    train_with([*COMMAND, *overrides, f"paths.runs={folder}"])
    return runs_in(folder)[0]


def assert_same(run: Path, other: Path) -> None:
    """Weights bit for bit, and every number of every step."""
    one, two = newest(run), newest(other)
    assert one["global_step"] == two["global_step"]
    assert all(torch.equal(tensor, two["state_dict"][name]) for name, tensor in one["state_dict"].items())
    seen = [
        [{k: v for k, v in row.items() if "second" not in k} for row in read_metrics(r / "metrics.csv")]
        for r in (run, other)
    ]
    assert seen[0] == seen[1]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_in(tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch):
    """told(signal, step, hook): this process gets the signal at that step, within that hook, once."""

    def at(number: int, step: int, hook: str = "on_before_optimizer_step") -> None:
        sound, sent = getattr(TwoStepModule, hook), []

        def telling(self: TwoStepModule, *arguments: object) -> object:
            if self.trainer.global_step == step and not sent:
                sent.append(number)
                signal.raise_signal(number)
            return sound(self, *arguments)

        monkeypatch.setattr(TwoStepModule, hook, telling)

    return at


@pytest.mark.parametrize(
    ("number", "step", "hook", "saved"),
    [
        (signal.SIGTERM, 5, "on_before_optimizer_step", 6),  # in the middle of an epoch
        (signal.SIGINT, 5, "on_before_optimizer_step", 6),
        (signal.SIGTERM, 7, "on_before_optimizer_step", 8),  # the last batch of an epoch, whose validation comes first
        (signal.SIGTERM, 8, "observe_validation", 8),  # in the middle of a validation
    ],
)
def test_what_was_saved_goes_on_bit_for_bit(
    number: int, step: int, hook: str, saved: int, told, tmp_path: Path, undisturbed: Path
) -> None:
    told(number, step, hook)
    # A notebook is interrupted by KeyboardInterrupt; SystemExit would end a user's program.
    ends, words = (KeyboardInterrupt, "^Ctrl-C: saved at step ") if number == signal.SIGINT else (SystemExit, "^143$")
    with pytest.raises(ends, match=words):
        train_in(tmp_path)
    run = runs_in(tmp_path)[0]
    assert summary_of(run)["status"] == "stopped"
    assert newest(run)["global_step"] == summary_of(run)["steps"] == saved
    assert_same(train_in(tmp_path), undisturbed)


def test_a_signal_at_the_last_step_waits_for_the_end_of_its_epoch(told, tmp_path: Path) -> None:
    """Else the run would go on after its last step, where nothing ends the epoch that was begun."""
    ends = ("trainer.max_steps=6", "checkpoints.every_n_steps=3")
    undisturbed = train_in(tmp_path / "undisturbed", *ends)
    told(signal.SIGTERM, 5)
    with pytest.raises(SystemExit):
        train_in(tmp_path, *ends)
    (run,) = (one for one in runs_in(tmp_path) if "undisturbed" not in str(one))
    assert summary_of(run)["epochs"] == summary_of(undisturbed)["epochs"] == 2
    assert_same(run, undisturbed)


@pytest.mark.parametrize("typed", [("seed=0",), ("experiment=reasoning", "data.numbers=4", "seeds=2")])
def test_after_a_run_that_ends_as_it_is_told_to_go_no_other_begins(typed, told, tmp_path: Path, capfd) -> None:
    told(signal.SIGINT, 16, "observe_validation")
    command = (
        [*COMMAND, *typed]
        if len(typed) == 1
        else [*typed, "trainer.max_epochs=16", "trainer.check_val_every_n_epoch=1", "threads=1"]
    )
    with pytest.raises(KeyboardInterrupt, match=r"^Ctrl-C: the run had already finished$"):
        train_with([*command, f"paths.runs={tmp_path}"])
    assert "Ctrl-C: the run had already finished" in capfd.readouterr().err
    assert {summary_of(run)["status"] for run in runs_in(tmp_path)} == {"finished"}


@pytest.mark.parametrize("reader", [os.pipe, pty.openpty], ids=["tee", "terminal"])
def test_a_run_saves_though_nobody_reads_what_it_says(
    reader, told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a script that calls ``lab.run`` and writes to ``tee``, which Ctrl-C ends at once."""
    told(signal.SIGINT, 5)
    ours, theirs = reader()
    os.close(ours)
    before = os.dup(2)
    # Broken for Python's lines and for those of signals' handlers.
    monkeypatch.setattr("sys.stderr", open(theirs, "w", closefd=False))  # noqa: SIM115
    os.dup2(theirs, 2)
    try:
        with pytest.raises(KeyboardInterrupt, match=r"^Ctrl-C: saved at step 6"):
            train_in(tmp_path, "callbacks.progress.line_every_seconds=0.001")
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(theirs)
    assert summary_of(runs_in(tmp_path)[0])["status"] == "stopped"


def test_a_second_ctrl_c_does_not_wait(told, tmp_path: Path, capfd) -> None:
    told(signal.SIGINT, 5, "training_step")
    told(signal.SIGINT, 5, "on_before_optimizer_step")
    with pytest.raises(KeyboardInterrupt, match=r"^Ctrl-C: ended$"):
        train_in(tmp_path, "checkpoints.every_n_steps=4")
    run = runs_in(tmp_path)[0]
    assert summary_of(run)["status"] == "stopped"
    assert newest(run)["global_step"] == 4
    said = capfd.readouterr().err
    assert "Ctrl-C: the run saves before it goes; Ctrl-C again ends it at once" in said
    assert "saved at step" not in said


def test_in_the_background_of_a_shell_ctrl_c_is_not_heard(told, tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        told(signal.SIGINT, 5)
        assert summary_of(train_in(tmp_path))["status"] == "finished"
    finally:
        signal.signal(signal.SIGINT, before)


def test_accumulated_batches_are_not_torn_apart(told, tmp_path: Path) -> None:
    """Told in the first of the two batches of a step; the step is finished first."""
    accumulating = "trainer.accumulate_grad_batches=2"
    whole = train_in(tmp_path / "whole", accumulating)
    told(signal.SIGTERM, 2, "training_step")
    with pytest.raises(SystemExit):
        train_in(tmp_path / "again", accumulating)
    assert newest(runs_in(tmp_path / "again")[0])["global_step"] == 3
    assert_same(train_in(tmp_path / "again", accumulating), whole)


def test_submitit_queues_the_job_again_once_it_is_saved(told, tmp_path: Path) -> None:
    called = []

    def requeue(number: int, frame: object) -> None:
        called.append((number, newest(runs_in(tmp_path)[0])["global_step"]))
        raise SystemExit(-1)

    with handling(requeue, signal.SIGUSR2):
        told(signal.SIGUSR2, 5)
        with pytest.raises(SystemExit) as left:
            train_in(tmp_path)
        assert signal.getsignal(signal.SIGUSR2) is requeue
    assert left.value.code == -1
    assert called == [(signal.SIGUSR2, 6)]
    assert summary_of(runs_in(tmp_path)[0])["status"] == "stopped"


@pytest.mark.parametrize(("dies", "ends"), [("kill -TERM $$", SystemExit), ("exit 1", LabError)])
def test_scontrol_may_die_by_the_requeue_that_it_asked_for(told, tmp_path: Path, dies: str, ends: type) -> None:
    """SLURM ends scontrol with the job; a result of the run would then say that a job that is queued has ended."""
    with handling(lambda number, frame: subprocess.check_call(["sh", "-c", dies]), signal.SIGUSR2):
        told(signal.SIGUSR2, 5)
        with pytest.raises(ends):
            train_in(tmp_path)
    assert newest(runs_in(tmp_path)[0])["global_step"] == 6


def test_a_run_that_submitit_does_not_queue_again_has_stopped_and_not_failed(told, tmp_path: Path, capfd) -> None:
    utils = pytest.importorskip("submitit.core.utils")

    def refuse(number: int, frame: object) -> None:
        raise utils.UncompletedJobError("Job not requeued because: timed-out too many times.")

    with handling(refuse, signal.SIGUSR2):
        told(signal.SIGUSR2, 5)
        with pytest.raises(SystemExit):
            train_in(tmp_path)
    assert summary_of(runs_in(tmp_path)[0])["status"] == "stopped"
    assert "Job not requeued because: timed-out too many times" in capfd.readouterr().err


def test_a_run_begun_anew_by_force_says_how_it_goes_on(told, tmp_path: Path, capfd) -> None:
    told(signal.SIGTERM, 5)
    with pytest.raises(SystemExit):
        train_in(tmp_path, "force=true")
    assert "from where the same command without force=true goes on" in capfd.readouterr().err


def test_a_limit_that_is_near_is_not_forgotten_when_it_is_reached(told, tmp_path: Path) -> None:
    """SIGUSR2, then SIGTERM before the run has come to save: the job is queued again all the same."""
    called = []
    with handling(lambda number, frame: called.append(number), signal.SIGUSR2):
        told(signal.SIGTERM, 5, "on_before_optimizer_step")
        told(signal.SIGUSR2, 5, "training_step")
        with pytest.raises(SystemExit):
            train_in(tmp_path)
    assert called == [signal.SIGUSR2]


def test_signals_are_as_before_after_a_run(undisturbed: Path) -> None:
    assert undisturbed.exists()
    assert [signal.getsignal(number) for number in SIGNALS] == [signal.default_int_handler, *[signal.SIG_DFL] * 3]


def test_seeds_leave_together(told, tmp_path: Path) -> None:
    reasoning = ("experiment=reasoning", "data.numbers=4", "trainer.max_epochs=30", "threads=1", "logger=csv_only")
    train_with([*reasoning, "seeds=2", f"paths.runs={tmp_path / 'whole'}"])
    told(signal.SIGTERM, 12, "observe_training")
    with pytest.raises(SystemExit):
        train_with([*reasoning, "seeds=2", f"paths.runs={tmp_path / 'again'}"])
    assert [newest(run)["global_step"] for run in runs_in(tmp_path / "again")] == [13, 13]
    train_with([*reasoning, "seeds=2", f"paths.runs={tmp_path / 'again'}"])
    for run, other in zip(runs_in(tmp_path / "again"), runs_in(tmp_path / "whole"), strict=True):
        assert_same(run, other)


# One step an epoch; a moment at the first validation, after ten epochs.
SMALL_NUMBERS = ("experiment=reasoning_small", "data.numbers=4", "threads=1", "logger=csv_only")
EARLY = (*SMALL_NUMBERS, "callbacks.eureka.threshold=0.01")


def test_a_run_that_waits_for_its_end_after_the_moment_goes_on_to_it(told, tmp_path: Path, capfd) -> None:
    """Saved between two validations, past moment + stop_after: it ends at the next validation, as if undisturbed."""
    command = [*EARLY, "trainer.max_epochs=60", "callbacks.eureka.stop_after=3"]
    train_with([*command, f"paths.runs={tmp_path / 'whole'}"])
    told(signal.SIGTERM, 13, "on_before_optimizer_step")
    with pytest.raises(SystemExit):
        train_with([*command, f"paths.runs={tmp_path / 'again'}"])
    (run,), (whole,) = runs_in(tmp_path / "again"), runs_in(tmp_path / "whole")
    assert newest(run)["global_step"] == 14
    capfd.readouterr()
    train_with([*command, f"paths.runs={tmp_path / 'again'}"])
    assert "step 15/60" in (said := capfd.readouterr().err) and "not validated yet" not in said
    assert newest(run)["global_step"] == 20
    assert_same(run, whole)


def test_a_run_kept_beyond_its_moment_by_least_epochs_can_be_told_to_go(told, tmp_path: Path) -> None:
    kept = ["callbacks.eureka.stop_after=0", "trainer.max_epochs=60", "+trainer.min_epochs=40"]
    told(signal.SIGTERM, 24, "on_before_optimizer_step")
    with pytest.raises(SystemExit):
        train_with([*EARLY, *kept, f"paths.runs={tmp_path}"])
    (run,) = runs_in(tmp_path)
    assert newest(run)["global_step"] == 25
    train_with([*EARLY, *kept, f"paths.runs={tmp_path}"])
    assert summary_of(run)["steps"] == 40


@pytest.mark.parametrize("forked", [False, True])
def test_ctrl_c_is_told_once_and_not_by_processes_that_load_data(forked: bool, monkeypatch, capfd) -> None:
    preemption = Preemption()
    with handling(signal.default_int_handler, *SIGNALS):
        preemption.on_train_start(None, None)
        if forked:
            monkeypatch.setattr(os, "getpid", lambda: -1)
        signal.raise_signal(signal.SIGINT)
        assert capfd.readouterr().err.count("Ctrl-C") == (0 if forked else 2)
        with pytest.raises(SystemExit, match="130"):
            signal.raise_signal(signal.SIGINT)


def test_processes_save_and_leave_together(tmp_path: Path) -> None:
    """As a person ends them: SIGTERM to the first process, which has started the other."""
    command = [*COMMAND, *TWO_PROCESSES, "trainer.max_epochs=3000", "checkpoints.every_n_steps=5"]
    process = Process("-m", "lab.train", *command, folder=tmp_path)
    deadline = time.monotonic() + 300
    while not list(tmp_path.rglob("last-*.ckpt")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM, said
    assert said.count("SIGTERM: saved at step") == 1
    run = runs_in(tmp_path)[0]
    assert summary_of(run)["status"] == "stopped"
    assert newest(run)["global_step"] == summary_of(run)["steps"]


def test_a_run_whose_folder_was_taken_over_ends_without_writing(
    tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another node believes this process dead; from then on the folder is the other's alone."""
    monkeypatch.setattr("lab.runs.lock.HEARTBEAT", 0.01)
    sound = TwoStepModule.on_before_optimizer_step

    def taken_over(self: TwoStepModule, *arguments: object) -> None:
        if self.trainer.global_step == 5:
            (run,) = runs_in(tmp_path)
            held_by(run, Holder("theirs", "node07", 1, 0.0, None))
            time.sleep(1.0)
            for path in (run / "summary.json", run / "metrics.csv"):
                path.write_text("theirs")
        sound(self, *arguments)

    monkeypatch.setattr(TwoStepModule, "on_before_optimizer_step", taken_over)
    with pytest.raises(LabError, match="another process took it over"):
        train_in(tmp_path)
    (run,) = runs_in(tmp_path)
    assert (run / "summary.json").read_text() == (run / "metrics.csv").read_text() == "theirs"
    assert '"pid": 1' in (run / HOLDER).read_text()


@pytest.mark.parametrize(
    ("number", "error", "ends"),
    [
        (signal.SIGTERM, CompilerError, SystemExit),
        (signal.SIGTERM, RuntimeError, RuntimeError),
        (None, CompilerError, CompilerError),
    ],
)
def test_a_signal_that_ends_the_compiler_stops_the_run(number, error, ends) -> None:
    """Its processes are in the same group: Ctrl-C reaches them, too."""
    preemption = Preemption()
    preemption.told = number
    with pytest.raises(ends) as told, preemption.obeyed():
        raise error("g++ was killed")
    assert ends is not SystemExit or told.value.code == 128 + signal.SIGTERM
