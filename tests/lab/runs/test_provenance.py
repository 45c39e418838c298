"""What a run says of where it comes from."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from lab.runs import provenance
from lab.runs.provenance import git_state


def test_a_commit_is_modified_by_what_runs_and_not_by_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "lab" / "runs" / "provenance.py"
    page = tmp_path / "results" / "README.md"
    for path in (own, page):
        path.parent.mkdir(parents=True)
        path.write_text("before")

    def git(*words: str) -> None:
        who = ("-c", "user.name=A", "-c", "user.email=a@b.c")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    git("add", ".")
    git("commit", "-m", "all")
    monkeypatch.setattr(provenance, "__file__", str(own))
    assert git_state()["commit"] and not git_state()["modified"]
    page.write_text("after")
    assert not git_state()["modified"]
    (tmp_path / "lab" / "mine.py").touch()
    assert git_state()["modified"], "a file that git does not know yet runs all the same"
    monkeypatch.setattr(provenance, "__file__", str(own.with_name("elsewhere.py")))
    assert git_state() == {"commit": None, "modified": False}


def test_the_name_of_a_gpu_is_asked_of_its_driver(tmp_path: Path, monkeypatch) -> None:
    """PyTorch would open the GPU for it, also in a run on the CPU."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\necho "A card, asked with $3"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert provenance.machine()["gpu"] == "A card, asked with --id=2"
    assert not torch.cuda.is_initialized()
    tool.write_text("#!/bin/sh\necho 'no devices'\nexit 6\n")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "the same card")
    assert provenance.machine()["gpu"] == "the same card"
