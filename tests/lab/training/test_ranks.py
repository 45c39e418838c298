"""Processes of other ranks end with rank 0."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from hydra.errors import InstantiationException
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from lab.console import LabError, tell
from lab.runs.outcome import Ending
from lab.training.processes import RANK_0
from lab.training.ranks import OtherRanks, named_rank_0

# Rank 0 starts rank 1 as Lightning does, by its own command with another LOCAL_RANK.
RANKS = """
import os, pathlib, signal, subprocess, sys, time
from lab.training.processes import end_with_rank_0
from lab.training.processes import RANK_0
if os.environ.get("LOCAL_RANK") is None:
    os.environ[RANK_0] = str(os.getpid())
    subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "LOCAL_RANK": "1"})
else:
    end_with_rank_0()
    os.kill(os.getpid(), signal.SIGTERM)  # as of a whole group
    pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has ended")
def test_a_rank_ends_when_rank_0_is_killed(tmp_path: Path) -> None:
    script, there = tmp_path / "ranks.py", tmp_path / "there"
    script.write_text(RANKS)
    environment = {name: value for name, value in os.environ.items() if name not in ("LOCAL_RANK", RANK_0)}
    with subprocess.Popen([sys.executable, str(script), str(there)], env=environment) as rank_0:
        until = time.monotonic() + 60
        while not (there.exists() and there.read_text()) and time.monotonic() < until:
            time.sleep(0.05)
        rank_1 = psutil.Process(int(there.read_text()))
        rank_0.send_signal(signal.SIGKILL)
    rank_1.wait(10)


def test_rank_0_is_named_while_it_trains_and_takes_the_others_along() -> None:
    with named_rank_0():
        assert os.environ[RANK_0] == str(os.getpid())
    assert RANK_0 not in os.environ
    other = subprocess.Popen(["sleep", "60"])
    launcher: Any = _SubprocessScriptLauncher.__new__(_SubprocessScriptLauncher)
    launcher.procs = [other]
    trainer: Any = SimpleNamespace(strategy=SimpleNamespace(launcher=launcher))
    OtherRanks().on_exception(trainer, None, RuntimeError())  # type: ignore[arg-type]
    assert other.wait(10) == -signal.SIGKILL
    trainer.strategy.launcher = None  # a single process
    OtherRanks().on_exception(trainer, None, RuntimeError())  # type: ignore[arg-type]


def test_the_process_that_fails_says_why_and_the_others_that_it_has_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    tell("nothing")
    tell("error: no image", by_all=True)
    assert capsys.readouterr().err == "process 1: error: no image\n"
    lost = RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [::1]")
    with pytest.raises(LabError, match="Connection closed"), Ending().told():  # of a single process
        raise lost
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    with (
        pytest.raises(LabError, match="another process of this run has ended: the reason stands above"),
        Ending().told(),
    ):
        raise lost
    with pytest.raises(LabError, match="another reason"), Ending().told():
        raise RuntimeError("another reason")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("DataLoader worker (pid 12) is killed by signal: Killed. ", "killed by signal: Killed"),
        (
            "DataLoader worker (pid 12) is killed by signal: Bus error. It is possible that dataloader's workers are "
            "out of shared memory. Please try to raise your shared memory limit.",
            "killed by signal: Bus error",
        ),
        ("DataLoader worker (pid(s) 12, 13) exited unexpectedly", "exited unexpectedly"),
    ],
)
def test_a_lost_loader_process_is_told_with_what_to_do(words: str, told: str) -> None:
    with (
        pytest.raises(LabError, match=rf"^a process that loads data was lost \({told}\), .* lower data\.workers"),
        Ending().told(),
    ):
        raise RuntimeError(words)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has"), " to allocate 2.00 GiB"),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: you tried to allocate 812 bytes."),
            " to allocate 812 bytes",
        ),
        (
            RuntimeError("MPS backend out of memory (MPS allocated: 9.00 GB). Tried to allocate 1 GB"),
            " to allocate 1 GB",
        ),
        (RuntimeError("CUDA error: out of memory"), ""),
        (RuntimeError("unable to mmap 80 bytes from file </x>: Cannot allocate memory (12)"), ""),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), ""),
        (MemoryError(), ""),
    ],
)
def test_a_lack_of_memory_is_told_with_what_to_do(error: Exception, told: str) -> None:
    words = f"^there is too little memory{told}: free some, lower data.batch_size"
    with pytest.raises(LabError, match=words), Ending().told():
        raise error
    with pytest.raises(LabError, match=r"^there is too little memory"), Ending().told():
        raise InstantiationException("Error in call to target 'my.Model'") from error


def test_a_file_that_the_compiler_left_unfinished_is_named() -> None:
    with (
        pytest.raises(LabError, match=r"^/tmp/xy/main\.so in torch\.compile's cache is damaged: delete"),
        Ending().told(),
    ):
        raise RuntimeError("ImportError: /tmp/xy/main.so: file too short")
