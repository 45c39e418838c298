"""A run folder: its name, its lock, what ran in it, and how it ended.

    runs/<experiment>/<softmax>[,override=value ...]/seed=<seed>/
        config.yaml       the composed configuration
        provenance.json   command, git state, package versions, machine
        summary.json      status and outcome; the one file that reports read
        metrics.csv       every logged number
        checkpoints/      last-<step>.ckpt (two of them) and best.ckpt
        events.out.tfevents.*, pictures/   what TensorBoard reads; figures

A folder is named by what was run, not by the clock, so that the same command finds its own run again.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import torch
from filelock import FileLock, Timeout
from omegaconf import DictConfig, OmegaConf

from lab.errors import LabError
from lab.files import write_json, write_text

Status = Literal["running", "finished", "stopped", "failed"]

# Overrides that say where and how loudly to run, not what: no part of a run's name or identity.
NOT_WHAT = ("force", "paths", "logger", "threads", "checkpoints", "diagnostics", "hydra", "seeds", "sweep")
_IN_THE_NAME = ("experiment", "softmax", "seed")
_LONGEST_NAME = 160


def run_name(experiment: str, softmax: str, seed: int, overrides: Iterable[str]) -> str:
    """Folder of a run below ``paths.runs``: ``main_task/norm_softmax,softmax.tau=0.333/seed=3``.

    Args:
        experiment: the chosen ``experiment`` config.
        softmax: the chosen ``softmax`` config.
        overrides: as typed on the command line (Hydra's task overrides); their order does not matter.
    """
    rest = sorted(o.lstrip("+") for o in overrides if not _is(o, (*NOT_WHAT, *_IN_THE_NAME)))
    name = re.sub(r"[^\w.,=+~\[\]-]+", "-", ",".join([softmax, *rest]))
    if len(name) > _LONGEST_NAME:
        digest = hashlib.blake2b(name.encode(), digest_size=6).hexdigest()
        name = f"{name[: _LONGEST_NAME - 13]}-{digest}"
    return f"{experiment}/{name}/seed={seed}"


def _is(override: str, keys: tuple[str, ...]) -> bool:
    """Whether an override sets one of these keys; ``softmax.tau=3`` does not set ``softmax`` itself."""
    key = override.lstrip("+~").split("=", 1)[0].split("@", 1)[0]
    return key in keys or any(key.split(".")[0].split("/")[0] == k for k in keys if k in NOT_WHAT)


class Run:
    """One run folder, held by this process.

    Args:
        folder: where the run lives.
        primary: whether this process writes (rank 0); the others only read.

    Raises:
        LabError: if another process holds the folder.
    """

    def __init__(self, folder: Path, primary: bool = True) -> None:
        self.folder = folder
        self.primary = primary
        self.checkpoints = folder / "checkpoints"
        self.pictures = folder / "pictures"
        self.metrics = folder / "metrics.csv"
        self.summary = folder / "summary.json"
        self._lock = FileLock(folder / ".lock")
        if primary:
            folder.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(timeout=1)
            except Timeout:
                raise LabError(
                    f"another process is running in {folder}: wait for it, or change what is run "
                    "(another seed, say), or point paths.runs elsewhere"
                ) from None

    def release(self) -> None:
        """Lets other processes have the folder."""
        self._lock.release()

    def read_summary(self) -> dict[str, Any]:
        """The summary as last written; empty for a new run."""
        return read_summary(self.folder)

    def identify(self, config: DictConfig, provenance: dict[str, Any]) -> None:
        """Writes what is run, or checks that the folder holds just that.

        Raises:
            LabError: if the folder holds a run of another configuration.
        """
        if not self.primary:
            return
        mine = _identity(config)
        path = self.folder / "config.yaml"
        if path.exists():
            theirs = _identity(OmegaConf.load(path))
            different = sorted(k for k in mine.keys() | theirs.keys() if mine.get(k) != theirs.get(k))
            if different:
                listed = "; ".join(f"{k}: {theirs.get(k)!r} there, {mine.get(k)!r} now" for k in different[:4])
                raise LabError(
                    f"{self.folder} holds a run of another configuration ({listed}): "
                    "give force=true to start anew (the old run is kept beside it), or name another paths.runs"
                )
        else:
            write_text(path, OmegaConf.to_yaml(config, resolve=True))
        write_json(self.folder / "provenance.json", provenance)

    def set_aside(self) -> Path | None:
        """Moves what is in the folder to ``<folder>~1`` (or the next free number); nothing is ever deleted."""
        content = [path for path in self.folder.iterdir() if path.name != ".lock"] if self.folder.exists() else []
        if not content:
            return None
        number = 1
        while (aside := self.folder.with_name(f"{self.folder.name}~{number}")).exists():
            number += 1
        aside.mkdir()
        for path in content:
            shutil.move(path, aside / path.name)
        return aside

    def newest_checkpoint(self) -> tuple[Path | None, int, list[str]]:
        """The newest checkpoint that loads, its number of steps, and the names of damaged ones before it."""
        damaged: list[str] = []
        for path in sorted(self.checkpoints.glob("last-*.ckpt"), reverse=True):
            try:
                return path, int(load_checkpoint(path)["global_step"]), damaged
            except Exception as error:  # a damaged file fails in many ways, none of them ours to list
                damaged.append(f"{path} ({type(error).__name__}: {str(error).splitlines()[0][:80]})")
        return None, 0, damaged

    def checkpoint_steps(self) -> set[int]:
        """Steps of all checkpoints that load."""
        steps = set()
        for path in self.checkpoints.glob("last-*.ckpt"):
            with suppress(Exception):
                steps.add(int(load_checkpoint(path)["global_step"]))
        return steps

    def load_checkpoint(self, step: int) -> dict[str, Any]:
        """The checkpoint at ``step``, one of :meth:`checkpoint_steps`."""
        return load_checkpoint(self.checkpoints / f"last-{step:09d}.ckpt")


def load_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint as plain tensors and values on the CPU."""
    return torch.load(path, map_location="cpu", weights_only=True, mmap=False)


def _identity(config: Any) -> dict[str, Any]:
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    flat = _flatten({key: value for key, value in plain.items() if key not in NOT_WHAT})
    # Where the data and the run folder lie says nothing about what is run.
    return {key: value for key, value in flat.items() if not key.endswith((".root", ".download", ".folder"))}


def _flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= _flatten(item, f"{prefix}.{key}" if prefix else str(key))
    return flat


def read_summary(folder: Path) -> dict[str, Any]:
    """``summary.json`` of a run folder; empty where there is none, or where it is damaged.

    A run that says it is running, but whose lock nobody holds, was killed: its status reads ``stopped``.
    """
    try:
        summary = json.loads((folder / "summary.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    if summary.get("status") == "running" and not _held(folder):
        summary["status"] = "stopped"
    return summary


def _held(folder: Path) -> bool:
    lock = FileLock(folder / ".lock")
    try:
        with lock.acquire(blocking=False):
            return False
    except Timeout:
        return True
