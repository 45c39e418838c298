"""A full disk ends a run with one sentence; with room again, the same command ends it as if nothing had been."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from conftest import newest, runs_in, summary_of

from lab.callbacks.eureka import EurekaMoment
from lab.console import LabError, Unfinished
from lab.runs.metrics import read_metrics
from lab.train import run as train_with

SETTING = (
    "experiment=reasoning",
    "data.numbers=4",
    "trainer.max_epochs=30",
    "checkpoints.every_n_steps=10",
    "logger=csv_only",
    "callbacks=eureka",
    "threads=1",
)


def trained(folder: Path, *overrides: str) -> list[Path]:
    """Trains below ``folder``; the run folders."""
    train_with([*SETTING, *overrides, f"paths.runs={folder}"])
    return runs_in(folder)


def fill_up(monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    """Leaves no room from when a file of this name is written, but what is kept for the summary."""
    full = False
    flush = os.fsync

    def write(descriptor: int) -> None:
        nonlocal full
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        full = full or first in path.name
        if full and ("summary" not in path.name or (path.parent / ".reserve").exists()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", write)


@pytest.mark.parametrize("seeds", ["null", "2"], ids=["alone", "together"])
def test_a_full_disk_is_one_sentence_and_no_step_is_lost(seeds: str, tmp_path: Path, monkeypatch) -> None:
    whole = trained(tmp_path / "whole", f"seeds={seeds}")
    with monkeypatch.context() as patched:
        fill_up(patched, "last-000000020.ckpt")
        words = r"no room for .*/seed=0/.*: make room .* goes on from last-000000010\.ckpt$"
        with pytest.raises(Unfinished, match=words):  # a search goes on with it
            trained(tmp_path / "again", f"seeds={seeds}")
    assert {signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)} == {signal.SIG_DFL}
    for run in runs_in(tmp_path / "again"):
        assert summary_of(run)["status"] == "failed" and "make room" in summary_of(run)["error"]
        assert not [path for path in run.rglob("*") if path.suffix == ".unfinished" or path.name == ".reserve"]
    again = trained(tmp_path / "again", f"seeds={seeds}")
    for one, other in zip(whole, again, strict=True):
        torch.testing.assert_close(newest(one)["state_dict"], newest(other)["state_dict"], rtol=0, atol=0)
        assert read_metrics(one / "metrics.csv") == read_metrics(other / "metrics.csv")
        assert summary_of(other)["status"] == "finished"


def test_a_folder_that_is_deleted_while_it_trains_is_not_half_made_again(tmp_path: Path, monkeypatch) -> None:
    def delete(self: EurekaMoment, *_: object) -> None:
        for run in tmp_path.rglob("seed=0"):
            shutil.rmtree(run)

    monkeypatch.setattr(EurekaMoment, "on_validation_end", delete)
    with pytest.raises(LabError, match="is gone"):
        trained(tmp_path)
    assert not list(tmp_path.rglob("seed=0"))
