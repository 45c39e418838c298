"""The rooms of the lab import downwards, and import-linter sees an import that does not, behind the links, too."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def lint_imports(folder: Path) -> subprocess.CompletedProcess:
    """What `make test` runs, in ``folder``."""
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", program, "--no-cache", "--no-logo"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """All that is linted, in a folder of its own."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in ("lab", "callbacks", "datasets", "hydra_plugins", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "configs").mkdir()
    return tmp_path


def test_no_room_imports_upwards() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "file, imported, told",
    [
        ("datasets/reasoning.py", "lab.config.identity", "lab.datasets is not allowed to import lab.config"),
        ("datasets/tasks/main.py", "lab.attention.rule", "lab.datasets is not allowed to import lab.attention"),
        ("callbacks/eureka.py", "lab.training.fit", "lab.callbacks is not allowed to import lab.training"),
        ("callbacks/diagnostics/base.py", "scripts.curves", "lab is not allowed to import scripts"),
        ("lab/runs/folder.py", "lab.callbacks.eureka", "lab.runs is not allowed to import lab.callbacks"),
        ("lab/config/identity.py", "hydra_plugins.eureka_lab", "lab.config is not allowed to import lab.sweeps"),
        ("hydra_plugins/eureka_lab/__init__.py", "lab.runs.folder", "is not allowed to import lab.runs"),
    ],
)
def test_an_import_upwards_is_named(copy: Path, file: str, imported: str, told: str) -> None:
    with (copy / file).open("a") as module:
        module.write(f"\nimport {imported}\n")
    done = lint_imports(copy)
    assert done.returncode == 1
    assert told in done.stdout


def test_a_new_room_has_to_be_placed(copy: Path) -> None:
    (copy / "lab" / "attic.py").touch()
    done = lint_imports(copy)
    assert done.returncode == 1
    assert "- lab.attic" in done.stdout
