"""The grounds of a storm: its seed, its temporary folder, and the undisturbed runs that others are held against."""

from __future__ import annotations

import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scripts.process import Process
from scripts.storm.command import ROOT, Said, said_by
from scripts.storm.shapes import overrides

HOOK = Path(__file__).with_name("hook.py")


@dataclass(frozen=True)
class Undisturbed:
    """A run that nobody disturbed.

    Attributes:
        runs: the folder that holds it.
        events: its calls that changed the disk, in their order: "replace last-000000003.ckpt".
        seconds: how long it took.
    """

    runs: Path
    events: tuple[str, ...]
    seconds: float


class Grounds:
    """Place of a storm.

    Args:
        seed: of all that is drawn.
        folder: for all that is written.
    """

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self.folder = folder
        self._making = threading.RLock()

    def random(self, storm: str, number: int) -> random.Random:
        """Returns the generator of one case: what it draws depends on no other case."""
        return random.Random(f"{self.seed} {storm} {number}")

    def once(self, name: str, make: Callable[[Path], object]) -> Path:
        """Returns a folder that ``make(folder)`` fills at its first use."""
        folder = self.folder / "once" / name.replace(" ", "_")
        with self._making:
            if not folder.exists():
                folder.mkdir(parents=True)
                try:
                    make(folder)
                except BaseException:
                    shutil.rmtree(folder)
                    raise
        return folder

    def undisturbed(self, shape: str) -> Undisturbed:
        """Returns the undisturbed run of a shape.

        Raises:
            RuntimeError: if it does not train.
        """

        def make(folder: Path) -> None:
            began = time.monotonic()
            said = said_by(hooked(shape, folder / "runs", folder / "calls"))
            if said.status:
                raise RuntimeError(f"{shape} does not train undisturbed: {said.last_line}")
            (folder / "seconds").write_text(str(time.monotonic() - began))

        folder = self.once(shape, make)
        events = tuple((folder / "calls").read_text().splitlines())
        return Undisturbed(folder / "runs", events, float((folder / "seconds").read_text()))


def hooked(
    shape: str, runs: Path, events: Path, number: int = -1, when: str = "before", sent: int = signal.SIGKILL
) -> Process:
    """Starts a run of a shape that notes its calls in ``events`` and sends itself a signal at one (:mod:`hook`)."""
    words = [str(HOOK), str(runs), str(events), str(number), when, str(int(sent)), *overrides(shape, runs)]
    return Process(*words, folder=ROOT)


def train(shape: str, runs: Path) -> Said:
    """Runs the command of a shape to its end."""
    return said_by(Process("-m", "lab.train", *overrides(shape, runs), folder=ROOT))
