"""A run folder, held by one process: what lies in it, and what may be written there.

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

import io
import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lab.console import LabError
from lab.runs.files import write_json, write_text
from lab.runs.lock import FolderLock
from lab.runs.spec import identity_of
from lab.runs.summary import Summary, read_summary
from lab.runs.walk import free_place_aside


class Run:
    """Holds a run folder for this process.

    Args:
        folder: where the run lives.
        primary: whether this process writes (rank 0); the others only read.

    Attributes:
        begun: whether this process has trained: set by who trains.

    Raises:
        LabError: if another process holds the folder.
    """

    def __init__(self, folder: Path, primary: bool = True) -> None:
        self.folder = folder
        self.primary = primary
        self.checkpoints = folder / "checkpoints"
        self.pictures = folder / "pictures"
        self.metrics = folder / "metrics.csv"
        self.begun = False
        self._lock = FolderLock(folder)
        self._made = [path for path in (folder, *folder.parents) if not path.exists()]
        self._aside: Path | None = None
        if primary:
            self._lock.acquire()
        self._empty = primary and not self._content()

    def release(self) -> None:
        """Lets other processes have the folder."""
        self._lock.release()

    @property
    def lost(self) -> bool:
        """True if another process has taken the folder over: nothing may be written into it."""
        return self._lock.lost

    def read_summary(self) -> Summary | None:
        """Reads the summary as last written; None for a new run."""
        return read_summary(self.folder)

    def read_provenance(self) -> dict[str, Any]:
        """Reads where the folder's content comes from; empty for a new run."""
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
        there = OmegaConf.load(path)
        assert isinstance(there, DictConfig)
        mine, theirs = identity_of(config), identity_of(there)
        different = sorted(k for k in mine.keys() | theirs.keys() if mine.get(k) != theirs.get(k))
        if different:
            listed = "; ".join(f"{k}: {theirs.get(k)!r} there, {mine.get(k)!r} now" for k in different[:4])
            raise LabError(
                f"{self.folder} holds a run of another configuration ({listed}): "
                "give force=true to start anew (the old run is kept beside it), or name another paths.runs"
            )

    def set_aside(self) -> Path | None:
        """Moves what is in the folder to ``<folder>~1`` (or the next free number); nothing is ever deleted."""
        content = self._content()
        if not content:
            return None
        self._aside = aside = free_place_aside(self.folder)
        aside.mkdir()
        for path in content:
            shutil.move(path, aside / path.name)
        return aside

    def take_back(self) -> None:
        """Leaves the folder as it was, and lets go of it, if this process found no run in it and has not trained.

        Folders that it has made are gone then, and a run that it has set aside is in its place again.
        """
        if self.begun or self.lost or not (self._empty or self._aside):
            return
        for path in self._content():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if self._aside is not None:
            for path in self._aside.iterdir():
                shutil.move(path, self.folder / path.name)
            self._aside.rmdir()
        self._lock.release(remove=bool(self._made))
        with suppress(OSError):  # somebody else is at work there by now
            for path in self._made:
                path.rmdir()

    def _content(self) -> list[Path]:
        """Lists what is in the folder; hidden files say who holds it and which job is to run it, not what was run."""
        return [path for path in self.folder.iterdir() if not path.name.startswith(".")]

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
    """Tells whether an error is the machine's, and not the file's: too little memory, a disk that does not answer."""
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint as plain tensors and values on the CPU."""
    import torch  # takes seconds, and most readers of runs want summaries only

    # Read by ourselves, so that errno is the machine's: of a truncated file torch says "invalid argument" with one.
    return torch.load(io.BytesIO(path.read_bytes()), map_location="cpu", weights_only=True)
