"""The base of every diagnostic: looks at a probe set at intervals, and keeps a table, arrays and pictures."""

from __future__ import annotations

import io
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal

import lightning as L
import numpy as np
import pandas as pd
from lightning.pytorch.callbacks import Callback
from matplotlib.figure import Figure
from pydantic import NonNegativeInt, PositiveInt

from lab.callbacks.access import callbacks_of, model_of
from lab.callbacks.eureka import moment_step
from lab.callbacks.throughput import no_training
from lab.console import LabError, blamed, tell, unexpected
from lab.datasets.loading import data_of
from lab.files import DamagedFile, write_atomically, write_text
from lab.models.observable import attention_layers_of
from lab.observation.observe import Chunk, Findings, check_observers, observe
from lab.observation.subject import Subject
from lab.plotting.figures import save_figure
from lab.runs.boards import Board, boards

# What a diagnostic may need beside a model and its input, and the words for it in messages.
NEEDS = {
    "scenes": "scenes whose parts are known, to probe for them",
    "training": "batches and the loss of a run, to take their gradients",
    "text": "a model that reads text, and its tokenizer",
    "labels": "a run, with labels to validate on",
}


class Keeper(Callback):
    """A callback that keeps findings in ``diagnostics/<name>.csv`` and ``pictures/<name>``.

    Args:
        folder: the run folder, or another folder for a single look.
    """

    # The key of NEEDS that it cannot look without; None if any model and any input will do.
    needs: ClassVar[Literal["scenes", "training", "text", "labels"] | None] = None
    # Its key in the config, which messages name; None where no config has made it.
    key: str | None = None

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.table = pd.DataFrame()

    @property
    def name(self) -> str:
        """Its name in files and logs: the class name in snake case."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()

    @property
    def place(self) -> str:
        """Its place in the config, for messages."""
        return f"callbacks.{self.key or self.name}"

    @property
    def path(self) -> Path:
        """File of its table."""
        return self.folder / "diagnostics" / f"{self.name}.csv"

    def keep(self, findings: Findings, epoch: int | None, step: int | None) -> None:
        """Adds rows to the table, in place of earlier ones of the same step, and writes it.

        Args:
            findings: what was found.
            epoch: epochs trained; None leaves the column out, as for a checkpoint, which may lie within an epoch.
            step: optimiser steps trained; None leaves the column out, as for a model that was trained elsewhere.
        """
        moment = {name: value for name, value in (("epoch", epoch), ("step", step)) if value is not None}
        if taken := {"epoch", "step"} & {name for row in findings.rows for name in row}:
            raise LabError(
                f"{type(self).__name__} finds rows with {min(taken)!r}, a column that the lab writes itself: give it "
                "another name"
            )
        new = pd.DataFrame([{**moment, **row} for row in findings.rows])
        old = self.table[self.table["step"] != step] if "step" in self.table else self.table
        self.table = new if old.empty else pd.concat([old, new], ignore_index=True)
        if not self.table.empty:
            text = io.StringIO()
            self.table.to_csv(text, index=False, float_format="%.6g", lineterminator="\n")
            write_text(self.path, text.getvalue())

    def take_back(self, step: int) -> None:
        """Reads the table of a run that is resumed, up to the step of its checkpoint."""
        if self.path.exists():
            try:
                table = pd.read_csv(self.path)
                self.table = table[table["step"] <= step]
            except (ValueError, KeyError, TypeError) as error:
                raise DamagedFile.unreadable(self.path, error) from error

    def keep_arrays(self, findings: Findings, name: str) -> Path | None:
        """Writes the arrays as ``diagnostics/<diagnostic>/<name>.npz``; None where there are none."""
        if not findings.arrays:
            return None
        arrays: Any = findings.arrays
        path = self.path.with_suffix("") / f"{name}.npz"
        write_atomically(path, lambda file: np.savez_compressed(file, **arrays))
        return path

    def draw_found(
        self, findings: Findings, suffix: str = "", trainer: L.Trainer | None = None, pdf: bool = False
    ) -> list[Path]:
        """Draws all figures of a look as :meth:`draw` does; returns their PNG files.

        Args:
            findings: of the look.
            suffix: added to the names of the files.
            trainer: as in :meth:`draw`.
            pdf: as in :meth:`draw`.

        Raises:
            LabError: if a figure cannot be made.
        """
        paths = []
        for name, make in findings.figures.items():
            with blamed(f"{type(self).__name__}: the figure {name} fails"):
                figure = make()
            if not isinstance(figure, Figure):
                raise LabError(
                    f"{type(self).__name__}: the figure {name} is a {type(figure).__name__}: return Matplotlib's figure"
                )
            paths.append(self.draw(figure, name, trainer, pdf, suffix))
        return paths

    @contextmanager
    def telling_faults(self) -> Iterator[None]:
        """Runs a block that draws the picture over training; tells what fails, since training has ended well.

        Raises:
            LabError, OSError: as the block does.
        """
        try:
            yield
        except (LabError, OSError):
            raise
        except Exception as error:
            tell(f"{self.place} draws no picture over training: {unexpected(error)}")

    def draw(
        self, figure: Figure, name: str, trainer: L.Trainer | None = None, pdf: bool = False, suffix: str = ""
    ) -> Path:
        """Writes a picture below ``pictures``, and shows it on the boards; returns its PNG file.

        Args:
            figure: the picture.
            name: its name, also on the boards; "" for the one picture over training.
            trainer: the trainer, whose boards show the picture; None shows it on none.
            pdf: writes a PDF beside it, for a paper.
            suffix: added to the name of its file in the diagnostic's folder.

        Raises:
            TypeError: if it is no picture.
        """
        if not isinstance(figure, Figure):
            raise TypeError(f"a picture is a {type(figure).__name__}: return Matplotlib's figure")
        path = self.folder / "pictures" / (f"{self.name}/{name}{suffix}.png" if name else f"{self.name}.png")
        save_figure(figure, path, pdf=pdf)
        if trainer is not None:
            tag = f"{self.name}/{name}" if name else self.name
            for board in boards(trainer):
                # At the step of the epoch's other metrics, so that a resumed run keeps it where it keeps them.
                board.show_picture(tag, path, max(0, trainer.global_step - 1))
        return path

    def history(self, table: pd.DataFrame, moment: float | None) -> Figure | None:
        """The picture over training; None draws none.

        Args:
            table: the table over training.
            moment: the step of the Eureka-moment; None without one, NaN if no callback looked for it.
        """
        return None

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        if self.table.empty:
            # A run that was killed after its last checkpoint resumes at its end: on_train_start was not called.
            self.take_back(trainer.global_step)
        if self.table.empty:
            return
        with self.telling_faults():
            picture = self.history(self.table, moment_step(trainer))
            if picture is not None:
                self.draw(picture, "", trainer)


class CheckpointDiagnostic(Keeper, ABC):
    """A diagnostic that looks at a checkpoint once (``lab.inspect``), at inputs that it draws itself."""

    @abstractmethod
    def look(self, subject: Subject) -> Findings:
        """Looks once.

        Raises:
            LabError: if the model cannot be looked at in this way.
        """


class Diagnostic(Keeper, ABC):
    """Looks at the first scenes of the validation set before training and then every few epochs, on rank 0.

    A new diagnostic is a subclass with :meth:`see` and :meth:`conclude`, and a config with its ``_target_``. It writes
    ``diagnostics/<name>.csv`` (columns epoch and step, then its own) and pictures in ``pictures/<name>``, and never
    changes training: random state, gradients and the model's flags stay as they were. Diagnostics that are due together
    share one forward pass.

    Args:
        folder: the run folder.
        every_n_epochs: cadence of looks.
        scenes: how many scenes to look at.
        pictures_every_n_epochs: cadence of pictures of a single look; 0 draws none. The picture over training is drawn
            once, at its end.
    """

    # Quantities of the recorder that it reads.
    reads: tuple[str, ...] = ()
    # False for a diagnostic of pictures and arrays alone: it looks only where a picture is due.
    has_numbers: ClassVar[bool] = True

    def __init__(
        self,
        folder: str,
        every_n_epochs: PositiveInt = 1,
        scenes: PositiveInt = 256,
        pictures_every_n_epochs: NonNegativeInt = 10,
    ) -> None:
        super().__init__(folder)
        if scenes < 1 or every_n_epochs < 1:
            raise ValueError(
                f"{type(self).__name__} needs one scene and one epoch or more: {scenes=}, {every_n_epochs=}"
            )
        self.every_n_epochs = every_n_epochs
        self.scenes = scenes
        self.pictures_every_n_epochs = pictures_every_n_epochs
        self._told: set[str] = set()

    def draws_at(self, epoch: int) -> bool:
        """Tells whether a look after so many epochs draws pictures."""
        return bool(self.pictures_every_n_epochs) and epoch % self.pictures_every_n_epochs == 0

    def looks_at(self, epoch: int) -> bool:
        """Tells whether a look is due after so many epochs."""
        return epoch % self.every_n_epochs == 0 and (self.has_numbers or self.draws_at(epoch))

    def tell_once(self, words: str) -> None:
        """Prints a note that holds at every look, but only at the first one."""
        if words not in self._told:
            self._told.add(words)
            tell(f"{self.place}: {words}")

    @abstractmethod
    def see(self, chunk: Chunk) -> Any:
        """Summarises some scenes; the result should be small, since the results of all chunks are kept."""

    @abstractmethod
    def conclude(self, seen: list[Any]) -> Findings:
        """Combines what :meth:`see` returned for all chunks."""

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        model = model_of(pl_module)
        alike = [one.place for one in _diagnostics(trainer) if one.name == self.name]
        if len(alike) > 1:
            raise LabError(
                f"two diagnostics are called {self.name} and would write one file: leave out one of {', '.join(alike)}"
            )
        check_observers([self])
        if not attention_layers_of(model):
            raise LabError(
                f"{self.place} looks into attention, which {type(model).__name__} does not have: leave it out"
            )

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.is_global_zero and trainer.global_step:
            self.take_back(trainer.global_step)
        else:
            self._look_if_due(trainer, pl_module, epoch=0)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._look_if_due(trainer, pl_module, trainer.current_epoch + 1)

    def _look_if_due(self, trainer: L.Trainer, pl_module: L.LightningModule, epoch: int) -> None:
        """Looks for all diagnostics that are due, if this is the first of them; only on rank 0."""
        due = [one for one in _diagnostics(trainer) if one.looks_at(epoch)]
        if trainer.is_global_zero and due and due[0] is self:
            _look(trainer, pl_module, due, epoch)


def _diagnostics(trainer: L.Trainer) -> list[Diagnostic]:
    return [one for one in callbacks_of(trainer) if isinstance(one, Diagnostic)]


def _look(trainer: L.Trainer, pl_module: L.LightningModule, due: list[Diagnostic], epoch: int) -> None:
    """Shows the probe set to the diagnostics that are due, and writes down what they find."""
    with no_training(trainer):
        model, data, precision = model_of(pl_module), data_of(trainer), trainer.precision_plugin
        step = trainer.global_step
        row = max(0, step - 1)  # of the epoch's other metrics; before training there is none yet, and row 0 is taken
        for one, findings in zip(due, observe(model, data, due, pl_module.device, precision), strict=True):
            one.keep(findings, epoch, step)
            pictures = one.draws_at(epoch)
            values = {f"{one.name}/{name}": value for name, value in findings.scalars.items()}
            for logger in trainer.loggers:
                logger.log_metrics({**values, "epoch": max(0, epoch - 1)}, step=row)
                if pictures and isinstance(logger, Board):
                    for name, numbers in findings.histograms.items():
                        logger.show_histogram(f"{one.name}/{name}", numbers.float().cpu(), row)
            if pictures:
                one.keep_arrays(findings, f"epoch_{epoch:05d}")
                one.draw_found(findings, f"_epoch_{epoch:05d}", trainer)
