"""`make demo` says what it installs, installs no more than it needs, and nothing twice; a stub stands in for pip."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT

# Stands for Python: notes what pip is to install, makes "environments" that hold nothing but itself.
STUB = """#!/bin/sh
case "$*" in
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-m pip show "*) test -e "$(dirname "$0")/torch" ;;
    "-m pip install "*) echo "pip $*" >> calls.txt; touch "$(dirname "$0")/torch" ;;
    "scripts/"*) echo "ran $*" >> calls.txt ;;
esac
"""


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """What make needs of a clone, and a stub of Python."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "stub").write_text(STUB)
    (tmp_path / "stub").chmod(0o755)
    return tmp_path


def make(folder: Path, *words: str) -> tuple[str, list[str]]:
    """Runs make with the stub; what it says, and what it has had done."""
    calls = folder / "calls.txt"
    calls.unlink(missing_ok=True)
    # Not those of a make that runs the tests.
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    command = ["make", f"PYTHON={folder / 'stub'}", "VENV=env", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout, calls.read_text().splitlines() if calls.exists() else []


def test_the_demo_installs_what_it_needs_once_and_says_so(fresh: Path) -> None:
    told, calls = make(fresh, "demo")
    assert [line[:3] for line in told.splitlines() if line[1:3] == "/3"] == ["1/3", "2/3", "3/3"]
    assert "5 GB" in told
    assert "TORCH_INDEX=" in told
    assert not [call for call in calls if "dev" in call or "test" in call or "--index-url" in call]
    assert calls[0].endswith("constraints.txt torch torchvision")
    assert calls[-2].endswith("-e .")
    assert calls[-1] == "ran scripts/demo.py"

    told, calls = make(fresh, "demo")
    assert "/3" not in told
    assert calls == ["ran scripts/demo.py"]


def test_the_tests_install_theirs_on_top(fresh: Path) -> None:
    make(fresh, "demo")
    _, calls = make(fresh, "setup")
    assert len(calls) == 1
    assert calls[0].endswith("-e .[dev]")
    assert make(fresh, "setup")[1] == []


def test_pytorch_comes_from_the_index_that_is_named(fresh: Path) -> None:
    told, calls = make(fresh, "demo", "TORCH_INDEX=https://index.invalid/cpu")
    assert "Installing PyTorch from https://index.invalid/cpu" in told
    assert "CUDA" not in told
    # Without its dependencies, so that the index has to hold nothing else.
    assert calls[0].endswith("--no-deps --index-url https://index.invalid/cpu torch torchvision")
    assert not [call for call in calls[1:] if "index.invalid" in call]


def test_a_changed_list_of_packages_is_installed(fresh: Path) -> None:
    make(fresh, "setup")
    later = (fresh / "env" / ".dev").stat().st_mtime + 10
    os.utime(fresh / "pyproject.toml", (later, later))
    told, calls = make(fresh, "setup")
    assert "5 GB" not in told  # PyTorch is there
    assert [call.rpartition(" ")[2] for call in calls] == ["torchvision", "setuptools", ".", ".[dev]"]
