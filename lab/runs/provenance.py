"""Provenance of a result: command, git state, package versions, machine, SLURM job."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from lab import __version__
from lab.files import DamagedFile, read_json
from lab.runs import slurm

FILE = "provenance.json"

PACKAGES = (
    "torch",
    "torchvision",
    "lightning",
    "timm",
    "torchmetrics",
    "hydra-core",
    "tensorboard",
    "numpy",
)
# Folders and files of a checkout that decide what a run does.
_RUNS = ("lab", "callbacks", "configs", "datasets", "scripts", "pyproject.toml")


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def command_line() -> str:
    """The command that a person typed, as far as Python knows it."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    name = Path(sys.argv[0]).name
    if spec is not None:
        name = f"python -m {spec.name.removesuffix('.__main__')}"
    elif not name.startswith("eureka-"):  # the lab's own commands are called without python
        name = f"python {name}"
    return " ".join([name, *map(shlex.quote, sys.argv[1:])])


def git_state() -> dict[str, Any]:
    """Commit, and whether the code of runs differs from it (new files count); ``commit`` is None outside a checkout.

    Pages of results and documentation do not count: a command that writes one does not change later runs.
    """
    here = Path(__file__).parent

    def git(*arguments: str) -> str | None:
        try:
            # Without optional locks: a status that is killed would leave index.lock behind, and block every commit.
            command = ["git", "--no-optional-locks", *arguments]
            done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # Installed from a wheel, the lab may lie inside a checkout of something else.
    if git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return {"commit": None, "modified": False}
    changes = git("status", "--porcelain", "--", *(f":/{folder}" for folder in _RUNS))
    return {"commit": git("rev-parse", "HEAD"), "modified": bool(changes)}


def made_by_other_lab(folder: Path) -> str:
    """Says for a message which other version of the lab has made a run, in brackets; "" if this one has."""
    try:
        stored = dict(read_json(folder / FILE))
        # Before 0.2.0, runs did not say it.
        version, commit = dict(stored["versions"]).get("eureka-lab", "0.1.0"), dict(stored["git"]).get("commit")
    except (DamagedFile, KeyError, TypeError, ValueError):
        return ""
    at = f", commit {str(commit)[:8]}" if commit else ""
    return "" if version == __version__ else f" (made by lab {version}{at}, which reads it)"


def versions() -> dict[str, str]:
    """Versions of the packages that numbers depend on."""
    # The lab's own is that of the code which runs: what is installed may be another, or none.
    found = {"python": platform.python_version(), "eureka-lab": __version__}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Processor, cores, memory and accelerator."""
    import torch  # here: torch takes seconds, and a report asks only for the command and the commit

    return {
        "processor": _processor(),
        "cores": psutil.cpu_count(logical=True),
        "threads": torch.get_num_threads(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": _gpu(),
        "system": f"{platform.system()} {platform.release()}",
    }


def _gpu() -> str | None:
    """Name of the first GPU that this process may use."""
    import torch

    if not torch.cuda.is_available():
        return "Apple GPU" if torch.backends.mps.is_available() else None
    if not torch.cuda.is_initialized():
        # PyTorch would open the GPU to ask it, which takes memory there, and runs on the CPU have no use for it.
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", f"--id={first}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            done = None
        if done is not None and done.returncode == 0 and done.stdout.strip():
            return done.stdout.strip()
    return torch.cuda.get_device_name()


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def provenance() -> dict[str, Any]:
    """All of the above, as it is written into a run folder."""
    return {
        "command": command_line(),
        "started": now(),
        "git": git_state(),
        "versions": versions(),
        "machine": machine(),
        "slurm_job": slurm.job(),
    }
