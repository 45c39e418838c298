"""Console output: lines on stderr (from the first process only), tables on stdout, errors that a user can fix."""

from __future__ import annotations

import errno
import os
import re
import select
import signal
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from itertools import takewhile
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, NoReturn, TextIO

if TYPE_CHECKING:
    from rich.console import Console


class LabError(Exception):
    """Bad input or a run that cannot go on; the message says what is wrong, where, and what would be right."""


class Unfinished(LabError):
    """A run that has neither failed nor ended: the same command goes on with it."""


class Refused(LabError):
    """A run whose folder holds a run of another configuration: the same command will not run it."""


def printable(text: str) -> str:
    """Shows control characters as escapes (``\\x1b``): text of other people must not control the terminal."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def first_line(error: BaseException) -> str:
    """First line of an error's message, without its full stop; the name of its type where the message is empty."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__).strip().rstrip(".:")


def name_of(made: object) -> str:
    """The full name of a class or function."""
    return f"{getattr(made, '__module__', '')}.{getattr(made, '__qualname__', made)}"


def line_of(error: BaseException) -> str | None:
    """Names the line that an error came from: "my_rules.py, line 7, `...`".

    The last one of the user's code, else the last one of the lab's; None where it came from other libraries alone.
    """
    return users_line_of(error) or _last_line(error, _of_the_lab)


def users_line_of(error: BaseException) -> str | None:
    """Names the last line of the user's code that an error came through; None where there is none."""
    return _last_line(error, _of_the_user)


def _last_line(error: BaseException, own: Callable[[Path], bool]) -> str | None:
    for one in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(one.filename)
        if one.line and not one.filename.startswith("<") and own(path):
            name = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
            return f"{name}, line {one.lineno}, `{one.line}`"
    return None


def _of_the_lab(path: Path) -> bool:
    return Path(__file__).parent in path.parents


def _of_the_user(path: Path) -> bool:
    """Tells a file of the user from one of the lab or of other libraries, in this environment or in another."""
    libraries = {*map(Path, sysconfig.get_paths().values())}
    installed = libraries.intersection(path.parents) or {"site-packages", "dist-packages"}.intersection(path.parts)
    return not installed and not _of_the_lab(path)


def raised_on_purpose(error: BaseException) -> bool:
    """True for an error of a ``raise`` in the lab's or the user's code, whose message says what would be right."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or re.search(r"\braise\b", frames[-1].line or "") is None:
        return False
    path = Path(frames[-1].filename)
    return _of_the_lab(path) or _of_the_user(path)


def unexpected(error: BaseException) -> str:
    """Tells an error that is no answer to a user's input: its type, its message and the line that it came from."""
    line = line_of(error)
    # What is wrong with a value may be told below the first line (pydantic).
    why = " ".join(str(error).split()) if isinstance(error, ValueError) else first_line(error)
    return f"{type(error).__name__}: {why}" + (f" ({line})" if line else "")


def lacks_memory(error: BaseException) -> bool:
    """Tells whether an error says that there is no memory left, of the machine or of a GPU."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    # torch has a type of its own for its own share of a CUDA GPU alone: other errors are plain RuntimeErrors.
    words = "out of memory|DefaultCPUAllocator|Cannot allocate memory|ALLOC_FAILED"
    said = isinstance(error, RuntimeError) and re.search(words, str(error), re.IGNORECASE)
    return isinstance(error, MemoryError) or bool(said)


def cause_of(error: BaseException) -> BaseException | None:
    """Returns what a LabError that tells an error of a library is raised from: None, so that it stands alone.

    It is the error itself where the user's code has failed, whose lines a traceback shows, and with
    ``HYDRA_FULL_ERROR=1``.
    """
    one: BaseException | None = error
    while one is not None:
        if os.environ.get("HYDRA_FULL_ERROR") or users_line_of(one):
            return error
        one = one.__cause__ or one.__context__
    return None


@contextmanager
def blamed(what: str) -> Iterator[None]:
    """Tells an unexpected error within the block in one sentence, with the line that it came from.

    Args:
        what: what has failed, as the beginning of the sentence.

    Raises:
        LabError: in place of any other error but those that say by themselves what would be right (a ValueError that
            the code raises), or that do not lie in the code: missing files, no memory.
    """
    try:
        yield
    except (LabError, OSError):
        raise
    except Exception as error:
        if lacks_memory(error) or (isinstance(error, ValueError) and raised_on_purpose(error)):
            raise
        raise LabError(f"{what}: {unexpected(error)}") from error


def not_installed(package: str, extra: str) -> str:
    """The end of a message that asks for a package: which one is missing, and the extra of the lab that brings it."""
    return f"{package}, which is not installed: pip install 'eureka-lab[{extra}]'"


def duration(seconds: float) -> str:
    """A time in at most two units: "45 s", "32 min", "5 h 12 min", "3 d 4 h"."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 90:
        return f"{minutes} min"
    if minutes < 36 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24} h"


def counted(number: int, noun: str) -> str:
    """A number of things: "1 run", "2 runs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


# Seconds between two lines that tell a user at a terminal that work goes on.
_SILENCE = 5.0

# Names of commands, beside python -m lab.train and the like.
_COMMANDS = {f"eureka-{name}" for name in ("train", "inspect", "report", "status", "bench")}

# More threads than this crash OpenMP.
MOST_THREADS = 1024
# Errors of writing where nobody reads: a pipe whose reader has gone, a terminal that has.
UNREAD = (errno.EPIPE, errno.EIO)

# What this process's lines begin with.
_beginning = ""


def begin_lines(name: str) -> None:
    """Lets each line that :func:`tell` prints begin with a name, where runs of several processes share a terminal."""
    global _beginning
    _beginning = f"{name}: "


def tell(text: str, by_all: bool = False) -> None:
    """Prints a line, or several, on stderr; of the processes of one run only rank 0 does, unless it is ``by_all``.

    It is no error if nobody reads them any more: a terminal may go, and of ``2>&1 | tee log``, Ctrl-C ends ``tee``
    while a run still saves.
    """
    # Without Lightning there is one process; loading it just to print a line would take seconds.
    ranks = sys.modules.get("lightning.pytorch.utilities.rank_zero")
    rank = getattr(ranks.rank_zero_only, "rank", 0) if ranks else 0
    if by_all and rank:
        text = f"process {rank}: {text}"
    if by_all or not rank:
        try:
            print("\n".join(_beginning + printable(line) for line in text.split("\n")), file=sys.stderr, flush=True)
        except OSError as error:
            if error.errno not in UNREAD:
                raise


class _Patience(threading.Timer):
    """Timer that prints a line on stderr when it ends, and at a terminal another every five seconds until cancelled."""

    def __init__(self, seconds: float, text: str) -> None:
        super().__init__(seconds, tell, [text])
        self.daemon = True
        self._text = text

    def run(self) -> None:
        if self.finished.wait(self.interval):
            return
        tell(self._text)
        begun = monotonic() - self.interval
        while sys.stderr.isatty() and not self.finished.wait(_SILENCE):
            tell(f"{self._text}: {monotonic() - begun:.0f} s so far")


def tell_later(text: str, seconds: float = 3.0) -> threading.Timer:
    """Prints a line on stderr after ``seconds``, unless the timer is cancelled first: for work that is mostly quick."""
    timer = _Patience(seconds, text)
    timer.start()
    return timer


@contextmanager
def noted_if_slow(text: str) -> Iterator[None]:
    """Runs the block; prints ``text`` on stderr if the block takes more than a few seconds."""
    timer = tell_later(text)
    try:
        yield
    finally:
        timer.cancel()


def import_from_here() -> None:
    """Lets a user's modules in the current folder be imported, as ``python -m`` does and a console command does not."""
    if not sys.flags.safe_path and not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())


def end_imports_quietly() -> None:
    """Makes Ctrl-C end a lab command with one line while it still imports; leaves other programs alone."""
    flags = [*takewhile(lambda word: word.startswith("-"), sys.orig_argv[1:])]
    named = next(iter(sys.orig_argv[1 + len(flags) :]), "")
    if named.startswith("lab.") if flags[-1:] == ["-m"] else Path(named).name in _COMMANDS:
        before = sys.excepthook
        sys.excepthook = lambda kind, *rest: _ended() if kind is KeyboardInterrupt else before(kind, *rest)


def _ended() -> NoReturn:
    tell("\nCtrl-C: ended")
    # At once: Python itself would, after this hook, end the process by the signal.
    os._exit(128 + signal.SIGINT)


@contextmanager
def refusals() -> Iterator[None]:
    """Wraps a command: a LabError ends the program with the error's sentence and exit status 1, Ctrl-C with 130.

    If the reader of the command's output has gone (``| head``), the program ends silently with 141, as in shells,
    unless it outlives its readers (:func:`lab.terminal.outlive_readers`). With ``HYDRA_FULL_ERROR=1`` a LabError is
    left to Python, which shows the whole chain of its causes. Output that was
    closed (``>&-``) goes nowhere.
    """
    for descriptor, name in enumerate(("stdout", "stderr"), start=1):
        if getattr(sys, name) is None:
            setattr(sys, name, _nowhere(descriptor))
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: a folder's name may have signs of no encoding
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_has_gone():
            raise
        _write_no_more()
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        if error.filename is not None or not _output_fails_by(error.errno):
            raise
        _write_no_more()
        tell(f"error: the output cannot be written: {error.strerror or error}")
        sys.exit(1)
    except LabError as error:
        if os.environ.get("HYDRA_FULL_ERROR"):
            raise
        tell(f"error: {error}")
        sys.exit(1)
    except KeyboardInterrupt:
        tell("\nCtrl-C: ended")
        sys.exit(128 + signal.SIGINT)


def _nowhere(descriptor: int) -> TextIO:
    """Opens /dev/null in place of a closed descriptor, which the next file to be opened would get, lines and all.

    Processes that this one starts have it, too. Where a file has the descriptor already, it keeps it.
    """
    with suppress(OSError):
        os.fstat(descriptor)
        return open(os.devnull, "w")
    send_nowhere(descriptor)
    return open(descriptor, "w", closefd=False)


def send_nowhere(descriptor: int) -> None:
    """Lets what this process, and those that it starts, write to a descriptor go nowhere from now on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.set_inheritable(descriptor, True)  # dup2 does not, where a closed descriptor is the one that was opened
    if nowhere != descriptor:
        os.close(nowhere)


def _write_no_more() -> None:
    """Lets what is left of stdout go nowhere: Python flushes it once more as it exits, which must not fail again."""
    send_nowhere(sys.stdout.fileno())


def _output_fails_by(number: int | None) -> bool:
    """Tells whether to write to stdout, here the end of a line, is this error."""
    try:
        print(flush=True)
    except OSError as error:
        return error.errno == number
    return False


def _reader_has_gone() -> bool:
    poll = select.poll()
    poll.register(sys.stdout, 0)  # 0: no events but errors, which poll always reports
    return bool(poll.poll(0))


def tables() -> Console:
    """Returns the console for tables; to a file or a pipe each row is one line, which rich would fold to 80 columns."""
    from rich.console import Console  # here: most commands print no table

    class Tables(Console):
        def on_broken_pipe(self) -> None:
            raise  # to refusals; rich would end with status 1

    return Tables() if sys.stdout.isatty() or "COLUMNS" in os.environ else Tables(width=1000)
