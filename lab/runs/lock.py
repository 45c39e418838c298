"""Holds a run folder against every other process, on this machine and on the other nodes of a cluster.

flock excludes processes of one machine exactly and lets go when its holder dies. Some cluster file systems (Lustre
without ``-o flock``, NFS with local locks) do not carry it to other nodes. So ``.holder.json`` names the holder, and a
thread of its touches that file: a process elsewhere is refused while the file is being touched, and takes the folder
over once it no longer is. Nobody's clock is compared with anybody's: a contender watches whether the file changes.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from lab.console import LabError, tell
from lab.runs import slurm
from lab.runs.files import write_json

LOCK, HOLDER = ".lock", ".holder.json"
# Seconds between two signs of life, and without one until a process elsewhere may take the folder over.
BEAT, LEASE = 15.0, 60.0
# Two that take over at the same moment both have written by then; the later one has it.
SETTLE = 2.0


@dataclass(frozen=True)
class Holder:
    """Who holds a folder.

    Attributes:
        token: names this holding, as no other.
        host, pid, born: the process; ``born`` tells it from a later one of the same number.
        job: of SLURM; None outside.
    """

    token: str
    host: str
    pid: int
    born: float
    job: str | None

    def __str__(self) -> str:
        process = f"process {self.pid} on {self.host}"
        return f"SLURM job {self.job}, {process}" if self.job else process

    @property
    def here(self) -> bool:
        """Whether it runs, or ran, on this machine."""
        return self.host == socket.gethostname()

    def alive(self) -> bool:
        """Whether a process of this machine still runs."""
        with suppress(psutil.Error):
            return abs(psutil.Process(self.pid).create_time() - self.born) < 1
        return False


class FolderLock:
    """One folder, held by this process from :meth:`acquire` to :meth:`release`.

    Attributes:
        lost: another process has taken the folder over, as this one was silent for too long; or it is gone.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lost = False
        self._flock = _flock(folder)
        self._path = folder / HOLDER
        self._mine = Holder(uuid.uuid4().hex, socket.gethostname(), os.getpid(), _born(), slurm.job())
        self._released = threading.Event()
        self._held = False

    def acquire(self) -> None:
        """Takes the folder, at once where it is free or its holder died on this machine.

        Raises:
            LabError: if another process holds it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        kernel = True
        try:
            self._flock.acquire(timeout=1)
        except Timeout:
            raise self._refusal(read_holder(self.folder)) from None
        except OSError:
            kernel = False  # a file system without flock
        try:
            self._claim(kernel)
        except BaseException:
            self._flock.release()
            raise
        self._held = True
        threading.Thread(target=self._beat, name=f"holds {self.folder.name}", daemon=True).start()

    def release(self) -> None:
        """Lets others have the folder; does nothing where this process does not hold it."""
        if not self._held:
            return
        self._held = False
        self._released.set()
        if read_holder(self.folder) == self._mine:
            self._path.unlink(missing_ok=True)
        self._flock.release()

    def _claim(self, kernel: bool) -> None:
        """Writes the record of this holder; ``kernel``: flock has excluded the processes of this machine."""
        before = read_holder(self.folder)
        if before is None and not self._path.exists():
            self._create()
            return
        dead = before is not None and before.here and (kernel or not before.alive())
        if not dead:
            self._wait_for_silence(before)
        write_json(self._path, asdict(self._mine))
        self._settle(0.0 if dead else SETTLE)

    def _settle(self, seconds: float) -> None:
        """Waits until of two that have written at once the last one's record is what both read.

        Raises:
            LabError: if it is not this process's own.
        """
        time.sleep(seconds)
        if (there := read_holder(self.folder)) != self._mine:
            raise self._refusal(there)

    def _create(self) -> None:
        """Writes the record where there is none; of two that do, a hard link lets one pass, on NFS too."""
        draft = self.folder / f"{HOLDER}.{self._mine.token}"
        write_json(draft, asdict(self._mine))
        try:
            os.link(draft, self._path)
        except FileExistsError:
            raise self._refusal(read_holder(self.folder)) from None
        except OSError:  # a file system without hard links
            os.replace(draft, self._path)
            self._settle(SETTLE)
        finally:
            draft.unlink(missing_ok=True)

    def _wait_for_silence(self, holder: Holder | None) -> None:
        """Returns once the holder has given no sign of life for LEASE seconds.

        Raises:
            LabError: if it gives one.
        """
        tell(f"{self.folder} was held by {holder or 'an unknown process'}: seeing for {LEASE:.0f} s whether it lives")
        first = _sign(self._path)
        end = time.monotonic() + LEASE
        while time.monotonic() < end:
            time.sleep(min(1.0, LEASE / 10))
            now = _sign(self._path)
            if now is None:
                return
            if now != first:
                raise self._refusal(read_holder(self.folder))

    def _beat(self) -> None:
        """Touches the record while it is this process's own."""
        missing = 0
        while not self._released.wait(BEAT):
            with suppress(OSError):
                holder = read_holder(self.folder)
                # A network file system may show no file for a moment.
                missing = missing + 1 if holder is None else 0
                if missing > 1 or (holder is not None and holder != self._mine):
                    self.lost = not self._released.is_set()
                    return
                if holder is not None:
                    os.utime(self._path)

    def _refusal(self, holder: Holder | None) -> LabError:
        who = f" ({holder})" if holder else ""
        return LabError(
            f"another process is running in {self.folder}{who}: wait for it, or change what is run "
            "(another seed, say), or point paths.runs elsewhere"
        )


def read_holder(folder: Path) -> Holder | None:
    """Who holds a folder, or held it when it was killed; None where nobody does or the record is damaged."""
    try:
        return Holder(**json.loads((folder / HOLDER).read_text()))
    except (FileNotFoundError, json.JSONDecodeError, TypeError):
        return None


def is_held(folder: Path) -> bool:
    """Whether a process, here or elsewhere, holds a folder; of one elsewhere that was killed, True for two LEASEs."""
    kernel = True
    try:
        with _flock(folder).acquire(blocking=False):
            pass
    except Timeout:
        return True
    except OSError:
        kernel = False  # no flock here, or a colleague's folder
    holder = read_holder(folder)
    if holder is None:
        return False
    if holder.here:
        return not kernel and holder.alive()
    with suppress(OSError):
        return _now(folder) - (folder / HOLDER).stat().st_mtime < 2 * LEASE
    return False


def _flock(folder: Path) -> FileLock:
    # Its fallback would be a file that stays behind a killed process for ever.
    return FileLock(folder / LOCK, fallback_to_soft=False)


def _born() -> float:
    return float(psutil.Process().create_time())


def _sign(path: Path) -> tuple[int, int] | None:
    """What changes with every sign of life. Opened, for NFS asks the server only then."""
    try:
        with path.open("rb") as file:
            state = os.fstat(file.fileno())
    except FileNotFoundError:
        return None
    return state.st_mtime_ns, state.st_ino


def _now(folder: Path) -> float:
    """The time by the clock that stamps the folder's files, where one may write; else by this machine's."""
    try:
        os.utime(folder / LOCK)
        return (folder / LOCK).stat().st_mtime
    except OSError:
        return time.time()
