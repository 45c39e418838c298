"""Boards: loggers that people look at, which show pictures as well as numbers; and which run on a board a folder has.

TensorBoard, Weights & Biases and MLflow each have a file beside this one, and a config in ``configs/logger``. A board
of one's own derives from one of Lightning's loggers and from :class:`Board`.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import lightning as L
from lightning.pytorch.loggers import Logger
from torch import Tensor

from lab.console import LabError, duration, first_line, not_installed, tell
from lab.files import DamagedFile, read_json, write_json

# Name of a board -> identifier of the folder's run there, which a resumed run goes on with.
FILE = "boards.json"
# Seconds for which a board that takes nothing is left alone.
LEFT_ALONE = 300.0
# Seconds, and share of the time, that a run has waited for a board before it is told that the board is slow.
SLOW, SLOW_SHARE = 30.0, 0.25
# Tag of the threshold of a metric that has no tag of its own for it: this, and the metric's name.
THRESHOLD_OF = "eureka/threshold_of/"


class Board(Logger):
    """Logger that takes pictures and histograms as well as numbers; a board that cannot show one kind ignores it.

    Tags are as in ``attention_entropy/layers``; steps are optimiser steps.

    Attributes:
        package: the package that the board needs, which is also the name of the lab's extra; None: no other package.
        error: why the board did not take what was sent to it last; None where it did.
    """

    package: ClassVar[str | None] = None
    error: Exception | None = None
    _left_alone_until = -math.inf
    _told = _told_slow = False
    _since: float | None = None
    _waited = 0.0

    def send(self, sends: Callable[[], object], at_last: bool = False) -> None:
        """Calls what sends something to the board; one that no longer takes it is told of once, and left alone a while.

        The run goes on, whatever the error: all that the board misses is in the run's own files. A board that takes
        its time is told of once.

        Args:
            sends: is called, with the board's own package.
            at_last: send it also to a board that is left alone, as nothing will come after.
        """
        begun = time.monotonic()
        if begun < self._left_alone_until and not at_last:
            return
        try:
            sends()
            self.error = None
            self._tell_if_slow(begun)
        except Exception as error:
            self.error = error
            self._left_alone_until = time.monotonic() + LEFT_ALONE
            if not self._told:
                self._told = True
                tell(
                    f"{self._named} no longer takes what is logged "
                    f"({first_line(error)}): it misses what comes now, which is in the run folder, and is tried again "
                    f"every {duration(LEFT_ALONE)}"
                )

    @property
    def _named(self) -> str:
        return f"logger={self.package or type(self).__name__}"

    def _tell_if_slow(self, begun: float) -> None:
        """Says once that the run spends much of its time on waiting for the board; ``begun``: as it last sent."""
        now = time.monotonic()
        self._since = begun if self._since is None else self._since
        self._waited += now - begun
        if not self._told_slow and self._waited > max(SLOW, SLOW_SHARE * (now - self._since)):
            self._told_slow = True
            tell(
                f"{self._named} is slow: the run has waited {duration(self._waited)} of {duration(now - self._since)} "
                "for it to take what is logged; a higher trainer.log_every_n_steps sends less often"
            )

    def show_picture(self, tag: str, png: str | Path, step: int) -> None:
        """Takes the PNG file of a picture in the run folder."""

    def show_histogram(self, tag: str, values: Tensor, step: int) -> None:
        """Takes numbers of any shape and shows their distribution."""


def boards(trainer: L.Trainer) -> list[Board]:
    """The trainer's boards; none where they were left out."""
    return [logger for logger in trainer.loggers if isinstance(logger, Board)]


def check_installed(name: str, board: type) -> None:
    """Refuses a board whose package is missing.

    Args:
        name: of the config that asks for it.
        board: class of the logger, which need not be a board.

    Raises:
        LabError: if the package cannot be imported here.
    """
    package = getattr(board, "package", None)
    if package is not None and find_spec(package) is None:
        raise LabError(f"logger={name} needs {not_installed(package, package)}")


def title(folder: Path) -> str:
    """The name of a run on a board: experiment, setting and seed."""
    return "/".join(folder.absolute().parts[-3:])


def known_run(folder: Path, board: str) -> str | None:
    """The identifier of a folder's run on a board; None where the folder has none, or no valid one.

    Raises:
        LabError: if the file is damaged.
    """
    known = _known(folder).get(board)
    return known if isinstance(known, str) and re.fullmatch(r"[\w-]{1,64}", known) else None


def keep_run(folder: Path, board: str, identifier: str) -> None:
    """Notes which run of a board this folder is."""
    write_json(folder / FILE, {**_known(folder), board: identifier})


def _known(folder: Path) -> dict[str, Any]:
    if not (folder / FILE).exists():
        return {}
    try:
        found = read_json(folder / FILE)
    except DamagedFile as error:
        raise LabError(f"{error}; move it away: the run then begins anew on its board") from error
    return found if isinstance(found, dict) else {}
