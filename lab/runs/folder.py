"""A run folder, held by one process: what lies in it, and what may be written there.

    runs/<experiment>/<softmax>[,override=value ...]/seed=<seed>/
        config.yaml       the composed configuration
        provenance.json   command, git state, package versions, machine
        summary.json      status and outcome; the one file that reports read
        metrics.csv       every logged number
    tokenizer.json    the tokeniser of a run on a corpus
        checkpoints/      last-<step>.ckpt (two of them) and best.ckpt
        events.out.tfevents.*, pictures/   what TensorBoard reads; figures

A folder is named by what was run, not by the clock, so that the same command finds its own run again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from omegaconf import DictConfig, OmegaConf

from lab.config.identity import identity, telling
from lab.console import LabError, Refused, tell
from lab.files import DamagedFile, read_json, remove_unfinished, write_json, write_text
from lab.runs.lock import FolderLock
from lab.runs.metrics import FILE as METRICS
from lab.runs.provenance import FILE as PROVENANCE
from lab.runs.provenance import made_by_other_lab
from lab.runs.spec import identity_of
from lab.runs.stored_config import FILE as CONFIG
from lab.runs.stored_config import read_config
from lab.runs.summary import FILE as SUMMARY
from lab.runs.summary import RESERVE, NewerSummary, Summary, as_it_is_now, give_room_back, load_summary, reserve_room
from lab.runs.walk import free_place_aside
from lab.signals import undisturbed

if TYPE_CHECKING:
    from lab.runs.checkpoints import Checkpoint


CHECKPOINTS = "checkpoints"


class Run:
    """A run folder, which this process holds from :meth:`hold` to :meth:`release`.

    Args:
        folder: where the run lives.
        primary: whether this process writes (rank 0); the others only read.

    Attributes:
        begun: whether this process has trained; set by the code that trains.
    """

    def __init__(self, folder: Path, primary: bool = True) -> None:
        self.folder = folder
        self.primary = primary
        self.checkpoints = folder / CHECKPOINTS
        self.pictures = folder / "pictures"
        self.metrics = folder / METRICS
        self.begun = False
        self._lock = FolderLock(folder)
        self._made = [path for path in (folder, *folder.parents) if not os.path.exists(path)]
        self._aside: Path | None = None
        self._empty = False

    def hold(self) -> None:
        """Holds the folder for this process, if it writes, and removes what killed writes have left in it.

        Raises:
            LabError: if another process holds the folder.
        """
        if not self.primary:
            return
        try:
            self._lock.acquire()
            for place in (self.checkpoints, self.pictures):
                remove_unfinished(place)
            self._remove_unfinished()
            self._empty = not self._content()
        except BaseException:  # a signal, too
            self._leave()
            raise

    def release(self) -> None:
        """Lets other processes have the folder."""
        self._lock.release()

    @property
    def lost(self) -> bool:
        """True if another process has taken the folder over: nothing may be written into it."""
        return self._lock.lost

    def read_summary(self) -> Summary | None:
        """Reads the summary as last written; None for a new run, and for one whose summary is damaged.

        Raises:
            NewerSummary: if a newer version of the lab has written it.
        """
        try:
            return as_it_is_now(load_summary(self.folder), self.folder)
        except NewerSummary:
            raise
        except DamagedFile:
            return None

    def read_provenance(self) -> dict[str, Any]:
        """Reads where the folder's content comes from; empty for a new run."""
        try:
            found = read_json(self.folder / PROVENANCE)
        except DamagedFile:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def goes_on(self) -> bool:
        """True if the run has a checkpoint to go on from; without one it starts anew."""
        return any(self.checkpoints.glob("*.ckpt"))

    @property
    def cannot_go_on(self) -> bool:
        """True if a run has no checkpoint to go on from, and a new start would overwrite what it has left.

        That is a run that was stopped, and so saved, or one that has trained and whose summary is damaged or gone: it
        may have finished. A run that was killed or failed before its first checkpoint starts anew in its folder.
        """
        summary = self.read_summary()
        trained = self.metrics.exists() if summary is None else summary.status == "stopped" and summary.steps > 0
        return trained and not any(self.checkpoints.glob("last-*.ckpt"))

    def identify(self, config: DictConfig, provenance: dict[str, Any]) -> None:
        """Writes the configuration, or checks that the folder holds the same one; writes the provenance.

        Raises:
            LabError: if the folder holds a run of another configuration.
        """
        if not self.primary:
            return
        path = self.folder / CONFIG
        for own in (path, self.folder / SUMMARY, self.folder / PROVENANCE, self.metrics):
            if own.is_dir():
                raise LabError(f"{own} is a folder where a file of the run would be: move it elsewhere")
        self.check_same(config)
        reserve_room(self.folder)
        if not path.exists():
            write_text(path, OmegaConf.to_yaml(config, resolve=True))
        write_json(self.folder / PROVENANCE, provenance)

    def keep(self, files: Mapping[str, str]) -> None:
        """Writes files of the data into the folder: name -> text (:meth:`lab.datasets.loading.DataModule.kept`)."""
        for name, text in files.items() if self.primary else ():
            write_text(self.folder / name, text)

    def check_same(self, config: DictConfig) -> None:
        """Compares the folder's configuration, if it holds one, with this one.

        The folder's name tells only what was typed; a default or a config file may have changed since.

        Raises:
            Refused: if the folder holds a run of another configuration.
            LabError: if its configuration is damaged.
        """
        if not (self.folder / CONFIG).exists():
            return
        try:
            mine, theirs = identity_of(config), identity(read_config(self.folder))
        except DamagedFile as error:
            raise LabError(f"{error}; force=true starts anew and keeps the old run beside it") from error
        different = [k for k in mine.keys() | theirs.keys() if mine.get(k) != theirs.get(k)]
        if different:
            listed = [f"{k}: {theirs.get(k)!r} there, {mine.get(k)!r} now" for k in telling(different)[:4]]
            if len(different) > 4:
                listed.append(f"and {len(different) - 4} more")
            made_by = made_by_other_lab(self.folder)
            raise Refused(
                f"{self.folder} holds a run of another configuration ({'; '.join(listed)}){made_by}: "
                "give force=true to start anew (the old run is kept beside it), or name another paths.runs"
            )

    def set_aside(self) -> Path | None:
        """Moves what is in the folder to ``<folder>~1`` (or the next free number); nothing is ever deleted.

        Raises:
            OSError: if it cannot be moved; the folder is then as it was.
        """
        content = self._content()
        if not content:
            return None
        aside = free_place_aside(self.folder)
        with undisturbed():  # after half of it, take_back() would not know which files are of which run
            aside.mkdir()
            try:
                for path in content:
                    shutil.move(path, aside / path.name)
            except OSError:
                for path in aside.iterdir():
                    shutil.move(path, self.folder / path.name)
                aside.rmdir()
                raise
            self._aside = aside
        return aside

    def take_back(self) -> None:
        """Restores the folder as it was and lets go of it, if this process found it empty or set its run aside.

        Folders that this process has made are removed, and the run that it has set aside is moved back. Does nothing
        once this process has trained or has lost the folder.
        """
        if self.begun or self.lost or not (self._empty or self._aside):
            return
        with undisturbed():  # a second signal would leave the run before in two folders
            for path in self._content():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            give_room_back(self.folder)
            self._remove_unfinished()  # a signal may have interrupted a write
            if self._aside is not None:
                for path in self._aside.iterdir():
                    shutil.move(path, self.folder / path.name)
                self._aside.rmdir()
            self._leave()

    def _leave(self) -> None:
        """Lets go of the folder, and removes it if this process has made it and it is empty."""
        self._empty = False
        self._lock.release(remove=bool(self._made))
        with suppress(OSError):  # another process may be using the folder by now
            for path in self._made:
                with suppress(FileNotFoundError):  # a signal came before it was made
                    path.rmdir()

    def _remove_unfinished(self) -> None:
        """Removes temporary files that killed writes left in the folder, also those of the run's hidden files."""
        remove_unfinished(self.folder)
        remove_unfinished(self.folder, RESERVE)

    def _content(self) -> list[Path]:
        """Lists the folder without hidden files: they say who holds it and which job is to run it, not what was run."""
        return [path for path in self.folder.iterdir() if not path.name.startswith(".")]

    def newest_checkpoint(self) -> Checkpoint | None:
        """Reads the newest checkpoint that is intact; None where there is none at all.

        Raises:
            LabError: as :meth:`intact_checkpoints`.
        """
        return next(self.intact_checkpoints(), None)

    def checkpoint(self, which: int | Literal["best"]) -> Checkpoint:
        """Reads ``best.ckpt``, or the checkpoint after ``which`` steps.

        Raises:
            LabError: if there is none such, or it is damaged.
        """
        from lab.runs.checkpoints import DamagedCheckpoint, read_checkpoint  # here: loading torch takes seconds

        paths = [*sorted(self.checkpoints.glob("last-*.ckpt")), *self.checkpoints.glob("best.ckpt")]
        there = {path.stem.removeprefix("last-").lstrip("0") or "0": path for path in paths}
        try:
            return read_checkpoint(there[str(which)])
        except (KeyError, FileNotFoundError) as error:
            raise LabError(
                f"{self.folder} has no checkpoint {which}: there is {', '.join(there) or 'none at all'}"
            ) from error
        except DamagedCheckpoint as error:
            raise LabError(f"{there[str(which)]} is damaged: {error}") from error

    def intact_checkpoints(self) -> Iterator[Checkpoint]:
        """Reads the checkpoints, newest first; the damaged ones are named on stderr and left out.

        Raises:
            LabError: if there are checkpoints and all are damaged, since a new start would overwrite what is left; or
                if one is a folder.
        """
        paths = sorted(self.checkpoints.glob("*.ckpt"), reverse=True)
        if folders := [path for path in paths if path.is_dir()]:
            raise LabError(f"{folders[0]} is a folder where a checkpoint would be: move it elsewhere")
        if not paths:
            return
        from lab.runs.checkpoints import DamagedCheckpoint, read_checkpoint  # here: loading torch takes seconds

        found, damaged = False, []
        for path in paths:
            if not path.match("last-*"):
                continue
            try:
                checkpoint = read_checkpoint(path)
            except FileNotFoundError:
                continue  # a newer one has taken its place
            except DamagedCheckpoint as error:
                damaged.append(f"{path} ({error})")
                continue
            _tell_of_damage(damaged)
            found, damaged = True, []
            yield checkpoint
        if found:
            _tell_of_damage(damaged)
        elif damaged:
            raise LabError(
                f"no checkpoint of {self.folder} is intact: {'; '.join(damaged)}: training with force=true starts anew "
                "and keeps the old run beside it"
            )


def _tell_of_damage(checkpoints: Sequence[str]) -> None:
    for one in checkpoints:
        tell(f"damaged checkpoint, left out: {one}")
