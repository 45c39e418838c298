"""Files: written atomically, so that a reader never sees half of one; read as data, of bounded size."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, BinaryIO

from lab.console import LabError

_UNFINISHED = ".unfinished"
# Seconds after which a temporary file is taken for one of a killed process.
LONGEST_WRITE = 3600.0


class DamagedFile(LabError):
    """A file that is missing, unreadable or wrong.

    Attributes:
        short: the same sentence with only the name of the file, for callers that name its folder themselves.
    """

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} {why}")
        self.short = f"{path.name} {why}"

    @classmethod
    def unreadable(cls, path: Path, error: BaseException) -> DamagedFile:
        """Makes the error for a file whose reading failed with ``error``."""
        return cls(path, f"cannot be read: {one_line(error)}")


def as_path(given: object, example: str) -> Path:
    """Returns the path that a user gives to a function, with the home folder for ``~``.

    Args:
        given: text or a path.
        example: a call that would be right.

    Raises:
        LabError: if it is something else, or empty.
    """
    if not isinstance(given, str | os.PathLike) or not os.fspath(given):
        raise LabError(f"{given!r} is no path: give one, as in {example}")
    return Path(os.path.expanduser(given))


def one_line(error: BaseException) -> str:
    """Shortens what an error says to one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"


def check_writable(folder: Path, option: str) -> None:
    """Refuses a folder that nothing can be written into; removes what it made to find out.

    Args:
        folder: where files are to be written later.
        option: the option that named the folder.

    Raises:
        LabError: if a file cannot be made there.
    """
    missing = [one for one in (folder, *folder.parents) if not os.path.exists(one)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise LabError(f"{option} {folder} cannot be written: {error.strerror or error}") from error
    finally:
        for one in missing:
            with suppress(OSError):
                one.rmdir()


def read_file(path: Path, most: int) -> bytes:
    """Reads a file that anybody may have put there: only a plain file, of at most ``most`` bytes.

    Raises:
        DamagedFile: if it is something else (a pipe or a device may never end), or cannot be read.
    """
    try:
        # Without O_NONBLOCK, opening a pipe that nobody writes to would wait for ever.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise DamagedFile(path, "cannot be read: it is no plain file")
            if found.st_size > most:
                raise DamagedFile(path, f"cannot be read: it has {found.st_size:,} bytes, and {most:,} are the most")
            # Not ``most``: Python makes room for as much as is asked for. One more byte tells if the file has grown.
            return file.read(min(most, found.st_size + 1))
    except OSError as error:
        raise DamagedFile.unreadable(path, error) from error


def read_json(path: Path) -> Any:
    """Reads JSON that anybody may have written.

    Raises:
        DamagedFile: if it cannot be read.
    """
    try:
        return json.loads(read_file(path, 4 * 2**20).decode())
    except (ValueError, RecursionError) as error:
        raise DamagedFile.unreadable(path, error) from error


def lies_in(path: Path, folder: Path) -> bool:
    """Tells whether a path, links followed, is within a folder."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def write_atomically(path: Path, write: Callable[[BinaryIO], Any], make_folder: bool = True) -> None:
    """Calls ``write`` on a temporary file beside ``path`` and moves it there once it is safely on disk.

    Args:
        path: of the file.
        write: is given the temporary file.
        make_folder: make the folder if it is missing; False for a run that trains: somebody deleted its folder then.
    """
    if make_folder:
        path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_UNFINISHED}")
    try:
        with draft.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException as error:
        with suppress(OSError):  # of a folder that cannot be written, which is told
            draft.unlink()
        if isinstance(error, OSError) and not os.path.isdir(path.parent):
            raise LabError(f"{path.parent} is gone: it was deleted or moved while {path.name} was written") from error
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise


def is_full(error: BaseException) -> bool:
    """Tells whether an error says that the disk, or the user's quota of it, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_unfinished(path: Path) -> bool:
    """Tells whether a file is one that a killed write has left behind."""
    return fnmatch(path.name, f".*.????????{_UNFINISHED}")


def remove_unfinished(folder: Path, name: str = "[!.]*", seconds: float = 0.0) -> None:
    """Removes temporary files that killed writes left behind; only for the one process that writes these files.

    Args:
        folder: where they are.
        name: pattern of the files' names; by default all but hidden files, which not only a run's holder writes.
        seconds: removes only those that are older, where other processes may be writing.
    """
    for path in folder.glob(f".{name}.????????{_UNFINISHED}"):
        with suppress(OSError):  # gone meanwhile, or another user's
            if not seconds or time.time() - path.stat().st_mtime > seconds:
                path.unlink()


def write_text(path: Path, text: str, make_folder: bool = True) -> None:
    """Writes ``text`` atomically as UTF-8; half of a surrogate pair, which UTF-8 cannot hold, as an escape."""
    write_atomically(path, lambda file: file.write(text.encode(errors="backslashreplace")), make_folder)


def csv_text(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Returns rows as the text of a CSV file with a header; a column that a row does not have is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_json(path: Path, value: Any, make_folder: bool = True) -> None:
    """Writes ``value`` atomically as indented JSON."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n", make_folder)
