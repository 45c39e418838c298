"""Locks a run folder against every other process, on this machine and on the other nodes of a cluster.

- ``.lock``: flock excludes the other processes of one machine reliably and is released when its holder dies. Some
  cluster file systems (Lustre without ``-o flock``, NFS with local locks) do not carry it to other nodes.
- ``.lease``: a lease of filelock. Its holder keeps touching the file. Meanwhile a process on another node is refused;
  once the touching stops, that process takes the folder over. No two clocks are compared: a contender watches whether
  the file changes.
- ``.holder.json``: names the holder and its SLURM job, which a lease does not.

By itself, filelock takes a lease over only where two files can exchange their names in one step, which NFS and Lustre
refuse, and never a lease whose file is empty, as a crash may leave it. In these cases this module removes the file; if
two processes do so at the same moment, the later one gets the folder.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from filelock import FileLock, LeaseSettingsMismatch, SoftFileLease, Timeout
from pydantic import TypeAdapter, ValidationError

from lab.console import Unfinished, tell
from lab.files import DamagedFile, read_json, remove_unfinished, write_json
from lab.runs import slurm
from lab.signals import undisturbed

LOCK, LEASED, HOLDER = ".lock", ".lease", ".holder.json"
# Seconds between two signs of life, and seconds without one after which a process elsewhere may take the folder over.
HEARTBEAT, LEASE = 15.0, 60.0
# Seconds after which two processes that removed a silent holder's file at the same moment both have written their own:
# the file of the later one remains.
SETTLE = 2.0


@dataclass(frozen=True)
class Holder:
    """Holder of a folder.

    Attributes:
        token: of the lease; a new one each time a process takes the folder.
        host, pid, born: the process; ``born``, its start time, tells it from a later one with the same pid.
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
        """True where the holder runs, or ran, on this machine."""
        return self.host == socket.gethostname()

    def alive(self) -> bool:
        """Tells whether a holder on this machine still runs."""
        with suppress(psutil.Error):
            return abs(psutil.Process(self.pid).create_time() - self.born) < 1
        return False


class FolderLock:
    """One folder, held by this process from :meth:`acquire` to :meth:`release`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._flock = _flock(folder)
        self._lease = _lease(folder)

    @property
    def lost(self) -> bool:
        """True once the folder is gone, or another process has taken it over because this one was silent too long."""
        # The lease itself notices a missing file only at its next HEARTBEAT, and this process may write before then.
        gone = self._lease.is_locked and not (self.folder / LEASED).exists()
        return gone or self._lease.compromise is not None

    def acquire(self) -> None:
        """Takes the folder; without waiting where it is free or its holder died on this machine.

        Raises:
            LabError: if another process holds it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        kernel = True
        try:
            with undisturbed():
                self._flock.acquire(timeout=1)
        except Timeout:
            raise self._refusal() from None
        except OSError:
            kernel = False  # a file system without flock
        try:
            self._claim(kernel)
            with undisturbed():
                remove_unfinished(self.folder, HOLDER)
                token = self._lease.token or ""
                born = psutil.Process().create_time()
                mine = Holder(token, socket.gethostname(), os.getpid(), born, slurm.job())
                write_json(self.folder / HOLDER, asdict(mine))
        except BaseException:
            self.release()
            raise

    def release(self, remove: bool = False) -> None:
        """Lets others have the folder; does nothing where this process does not hold it.

        Args:
            remove: leave no file of the lock behind.
        """
        with undisturbed():
            # In a folder that can no longer be written, files of the lock stay, and no error hides that of the run.
            if self._lease.is_locked:
                if (holder := _read_record(self.folder)) and holder.token == self._lease.token:
                    with suppress(OSError):
                        (self.folder / HOLDER).unlink(missing_ok=True)
                with suppress(OSError):
                    self._lease.release()
            if remove and os.path.isdir(self.folder):  # which filelock would make
                with suppress(Timeout, OSError):  # a signal may have come before the flock was taken
                    self._flock.acquire(timeout=0)
                if self._flock.is_locked:  # a process that waits for it then makes a new one
                    (self.folder / LOCK).unlink(missing_ok=True)
            self._flock.release()

    def _claim(self, kernel: bool) -> None:
        """Takes the lease; ``kernel`` says that flock has excluded the other processes of this machine.

        Raises:
            LabError: if another process has it.
        """
        seen = _sign(self.folder)
        if self._lease_taken():
            return
        holder = read_holder(self.folder)
        if holder is None or not holder.here:
            if holder is None and kernel and _named_host(self.folder) == socket.gethostname():
                time.sleep(SETTLE)  # it died here and one of its files is damaged, or a process elsewhere is starting
            else:
                self._wait_for_silence(holder, seen)
            if self._lease_taken():
                return
        elif not kernel and holder.alive():
            raise self._refusal()
        if _sign(self.folder) != seen:
            raise self._refusal()
        with undisturbed():
            self._lease.force_break()
        if not self._lease_taken():
            raise self._refusal()
        time.sleep(SETTLE)
        if (owner := self._lease.owner) is None or owner.token != self._lease.token:
            raise self._refusal()

    def _lease_taken(self) -> bool:
        """Takes the lease if it is free, its holder died here, or it did not change for LEASE since the first try."""
        for _ in range(2):  # the first try may only remove a dead holder's file
            with suppress(Timeout, LeaseSettingsMismatch), undisturbed():
                self._lease.acquire(blocking=False)
                return True
        return False

    def _wait_for_silence(self, holder: Holder | None, seen: tuple[int, int] | None) -> None:
        """Returns once LEASE seconds have passed without a sign of life other than ``seen``, or the holder has let go.

        Raises:
            LabError: if the holder gives a sign of life.
        """
        tell(f"{self.folder} was held by {holder or 'an unknown process'}: watching {LEASE:.0f} s for a sign of life")
        end = time.monotonic() + LEASE
        while time.monotonic() < end and (now := _sign(self.folder)) is not None:
            if now != seen:
                raise self._refusal()
            time.sleep(min(1.0, LEASE / 10))

    def _refusal(self) -> Unfinished:
        holder = read_holder(self.folder)
        who = f" ({holder})" if holder else ""
        return Unfinished(
            f"another process is running in {self.folder}{who}: wait for it, or change what is run "
            "(another seed, say), or point paths.runs elsewhere"
        )


def read_holder(folder: Path) -> Holder | None:
    """Names the process that holds a folder, or held it when killed; None without one, or if the record is damaged."""
    owner, holder = _lease(folder).owner, _read_record(folder)
    # A new holder writes its record a moment after it takes the lease: until then the record is of the one before.
    return holder if owner is not None and holder is not None and owner.token == holder.token else None


def is_held(folder: Path) -> bool:
    """Tells whether any process holds a folder; one killed on another machine counts for two LEASEs more."""
    if not os.path.isdir(folder):
        return False  # filelock would make it
    kernel = True
    try:
        with undisturbed(), _flock(folder).acquire(blocking=False):
            pass
    except Timeout:
        return True
    except OSError:
        kernel = False  # no flock on this file system, or a colleague's folder
    holder = read_holder(folder)
    if holder is None:
        return False
    if holder.here:
        return not kernel and holder.alive()
    with suppress(OSError):
        return _now(folder) - (folder / LEASED).stat().st_mtime < 2 * LEASE
    return False


def _flock(folder: Path) -> FileLock:
    # A signal while filelock makes a lock would leave its own lock taken, at which a lease would wait.
    with undisturbed():
        # The fallback of filelock would be a file that a killed process leaves behind for ever.
        return FileLock(folder / LOCK, fallback_to_soft=False, thread_local=False)


def _lease(folder: Path) -> SoftFileLease:
    with undisturbed():
        return SoftFileLease(folder / LEASED, lease_duration=LEASE, heartbeat_interval=HEARTBEAT, thread_local=False)


def _read_record(folder: Path) -> Holder | None:
    try:
        return TypeAdapter(Holder).validate_python(read_json(folder / HOLDER))
    except (OSError, DamagedFile, ValidationError):
        return None


def _named_host(folder: Path) -> str | None:
    """Names the machine of the holder from its lease or, if that is unreadable, from its record."""
    owner, holder = _lease(folder).owner, _read_record(folder)
    return owner.hostname if owner is not None else holder.host if holder is not None else None


def _sign(folder: Path) -> tuple[int, int] | None:
    """Time and inode of the lease's file, which change with a sign of life; None where there is no file.

    The file is opened because NFS asks the server only then.
    """
    try:
        with (folder / LEASED).open("rb") as file:
            state = os.fstat(file.fileno())
    except FileNotFoundError:
        return None
    return state.st_mtime_ns, state.st_ino


def _now(folder: Path) -> float:
    """The time by the clock that stamps the folder's files, if they may be written; else by this machine's clock."""
    try:
        os.utime(folder / LOCK)
        return (folder / LOCK).stat().st_mtime
    except OSError:
        return time.time()
