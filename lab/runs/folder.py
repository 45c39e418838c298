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
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from omegaconf import DictConfig, OmegaConf

from lab.config.identity import NOT_WHAT, identity
from lab.console import LabError
from lab.runs.files import write_json, write_text
from lab.runs.lock import FolderLock, is_held

Status = Literal["running", "finished", "stopped", "failed"]
STATUSES: tuple[str, ...] = get_args(Status)

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


def run_folder(config: DictConfig, overrides: Iterable[str], choices: Mapping[str, Any], seed: int) -> Path:
    """Where the run of a composed config lives.

    Args:
        config: composed by Hydra.
        overrides: as typed.
        choices: group -> chosen config, as Hydra reports them.
        seed: in place of ``config.seed``.
    """
    name = run_name(str(choices.get("experiment") or "custom"), str(choices["softmax"]), seed, overrides)
    return Path(config.paths.runs).expanduser().absolute() / name


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
        self._lock = FolderLock(folder)
        if primary:
            self._lock.acquire()

    def release(self) -> None:
        """Lets other processes have the folder."""
        self._lock.release()

    @property
    def lost(self) -> bool:
        """Whether another process has taken the folder over: nothing may be written into it."""
        return self._lock.lost

    def read_summary(self) -> dict[str, Any]:
        """The summary as last written; empty for a new run."""
        return read_summary(self.folder)

    def read_provenance(self) -> dict[str, Any]:
        """Where the folder's content comes from; empty for a new run."""
        try:
            found = json.loads((self.folder / "provenance.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def identify(self, config: DictConfig, provenance: dict[str, Any]) -> None:
        """Writes what is run, or checks that the folder holds just that.

        Raises:
            LabError: if the folder holds a run of another configuration.
        """
        if not self.primary:
            return
        self.check_same(config)
        path = self.folder / "config.yaml"
        if not path.exists():
            write_text(path, OmegaConf.to_yaml(config, resolve=True))
        write_json(self.folder / "provenance.json", provenance)

    def check_same(self, config: DictConfig) -> None:
        """Compares the folder's configuration, if it holds one, with this one.

        A name holds what was typed; a default or a config file may have changed since.

        Raises:
            LabError: if the folder holds a run of another configuration.
        """
        path = self.folder / "config.yaml"
        if not path.exists():
            return
        mine, theirs = _identity(config), _identity(OmegaConf.load(path))
        different = sorted(k for k in mine.keys() | theirs.keys() if mine.get(k) != theirs.get(k))
        if different:
            listed = "; ".join(f"{k}: {theirs.get(k)!r} there, {mine.get(k)!r} now" for k in different[:4])
            raise LabError(
                f"{self.folder} holds a run of another configuration ({listed}): "
                "give force=true to start anew (the old run is kept beside it), or name another paths.runs"
            )

    def set_aside(self) -> Path | None:
        """Moves what is in the folder to ``<folder>~1`` (or the next free number); nothing is ever deleted."""
        # Hidden files say who holds the folder and which job is to run it, not what was run.
        content = [path for path in self.folder.iterdir() if not path.name.startswith(".")]
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
        """The newest checkpoint that loads, its number of steps, and the names of damaged ones before it.

        Raises:
            LabError: if there are checkpoints and none loads: a run that began anew would write over what is left.
        """
        path, content, damaged = self.read_newest_checkpoint()
        if damaged and path is None:
            raise self._all_damaged(damaged)
        return path, int(content.get("global_step", 0)), damaged

    def _all_damaged(self, damaged: list[str]) -> LabError:
        return LabError(
            f"no checkpoint of {self.folder} loads: {'; '.join(damaged)}: force=true starts anew and keeps the old run "
            "beside it"
        )

    def read_newest_checkpoint(self) -> tuple[Path | None, dict[str, Any], list[str]]:
        """The newest checkpoint that loads, what it holds, and the names of damaged ones before it."""
        damaged: list[str] = []
        for path in sorted(self.checkpoints.glob("last-*.ckpt"), reverse=True):
            try:
                content = load_checkpoint(path)
                int(content["global_step"])
                return path, content, damaged
            except FileNotFoundError:
                continue  # a newer one has taken its place
            except Exception as error:  # a damaged file fails in many ways, none of them ours to list
                if _is_of_the_machine(error):
                    raise
                damaged.append(_damage(path, error))
        return None, {}, damaged

    def checkpoint_steps(self) -> set[int]:
        """Steps of all checkpoints that load.

        Raises:
            LabError: if there are checkpoints and none loads.
        """
        steps, damaged = set(), []
        for path in self.checkpoints.glob("last-*.ckpt"):
            try:
                steps.add(int(load_checkpoint(path)["global_step"]))
            except Exception as error:
                if _is_of_the_machine(error):
                    raise
                damaged.append(_damage(path, error))
        if damaged and not steps:
            raise self._all_damaged(damaged)
        return steps

    def load_checkpoint(self, step: int) -> dict[str, Any]:
        """The checkpoint at ``step``, one of :meth:`checkpoint_steps`."""
        return load_checkpoint(self.checkpoints / f"last-{step:09d}.ckpt")


def _damage(path: Path, error: Exception) -> str:
    return f"{path} ({type(error).__name__}: {(str(error).splitlines() or [''])[0][:80]})"


def _is_of_the_machine(error: Exception) -> bool:
    """Whether it says nothing of the file: too little memory, a disk that does not answer."""
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint as plain tensors and values on the CPU."""
    import torch  # takes seconds, and most readers of runs want summaries only

    return torch.load(path, map_location="cpu", weights_only=True, mmap=False)


def _identity(config: Any) -> dict[str, Any]:
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return identity({str(key): value for key, value in plain.items()})


def is_finished(folder: Path) -> bool:
    """Whether the run of a folder has come to its end."""
    return bool(read_summary(folder).get("status") == "finished")


def read_summary(folder: Path) -> dict[str, Any]:
    """``summary.json`` of a run folder; empty where there is none, or where it is damaged.

    A run that says it is running, but whose lock nobody holds, was killed: its status reads ``stopped``.
    """
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(summary, dict) or summary.get("status") not in STATUSES:
        return {}
    if summary.get("status") == "running" and not is_held(folder):
        summary["status"] = "stopped"
    return summary
