"""Diagnostics that look at a trained model: they are built by name, and their findings are written and printed."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf
from rich.table import Table

from lab.callbacks.diagnostics.base import NEEDS, CheckpointDiagnostic, Diagnostic
from lab.config.check import check
from lab.config.command_line import composed
from lab.config.overrides import one_value, read_override
from lab.config.suggestions import choices
from lab.console import LabError, cause_of, first_line, tables, tell
from lab.datasets.loading import DataModule
from lab.files import as_path, check_writable, write_json
from lab.observation.observe import Findings, observe
from lab.observation.subject import Subject
from lab.runs.provenance import provenance

# Larger tables are not printed; they are in the files.
_MOST_ROWS, _MOST_COLUMNS = 30, 12


def device_named(name: str) -> torch.device:
    """The device of this name.

    Raises:
        LabError: if it cannot be used here.
    """
    if not isinstance(name, str | torch.device):
        raise LabError(f"device={name!r} is no device: give its name, as 'cpu' or 'cuda'")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise LabError(f"device={name} cannot be used here: {first_line(error)}") from error
    return device


def typed_softmax(softmax: str | None, options: Sequence[str]) -> list[str]:
    """Overrides of the softmax to swap in; none where the model keeps its own.

    Raises:
        LabError: if there are options, but no softmax that they belong to, or they are no list.
    """
    if isinstance(options, str):
        raise LabError(f"options of the softmax are a list, as in ['softmax.tau=3'], got {options!r}")
    if softmax is None and options:
        raise LabError(f"{options[0]} needs softmax=<name>, the softmax to swap in")
    return [] if softmax is None else [f"softmax={softmax}", *options]


def _check_named(callbacks: Sequence[str]) -> None:
    """Refuses an option of a diagnostic that is not asked for, or that a single look has no use for.

    Raises:
        LabError: if there is such an option.
    """
    typed = [read_override(one) for one in callbacks]
    options = [one for one in typed if one.key.startswith("callbacks.")]
    if not options:
        return
    named = [str(name) for name in composed([one.text for one in typed if one not in options]).config.callbacks]
    for one in options:
        name, _, option = one.key.removeprefix("callbacks.").partition(".")
        told = one.text.removeprefix("callbacks.")
        if name not in named:
            raise LabError(f"{told}: {name} is none of the diagnostics that look; {choices(name, named)}")
        if option == "folder":
            raise LabError(f"{told}: out= names the folder of all that is found")
        if option in ("every_n_epochs", "pictures_every_n_epochs"):
            raise LabError(f"{told}: lab.inspect looks once and draws all pictures: leave it out")


class Looks:
    """Diagnostics that look once at a trained model; each writes its own table, pictures and note.

    Args:
        callbacks: overrides of ``configs/train.yaml`` that choose and configure the diagnostics, or name a folder with
            more configs.
        folder: where the diagnostics write.
        force: overwrite the files of an earlier look.

    Raises:
        LabError: if there is no such diagnostic or option, or an earlier look would be overwritten.
    """

    def __init__(self, callbacks: Sequence[str], folder: str | Path, force: bool = False) -> None:
        folder = as_path(folder, "inspect(..., out='looks')")
        if any(one.exists() and not one.is_dir() for one in (folder, *folder.parents)):
            raise LabError(f"out={folder} is a file: name a folder for tables and pictures")
        for typed in callbacks:
            one_value(typed)
        _check_named(callbacks)
        try:
            config = composed(callbacks).config
            config.paths.run = str(folder)
            check(config)
        except LabError as error:  # in the words that were typed
            # Not within the name of a class, as in lab.callbacks.diagnostics.
            told = re.sub(r"(?<![\w.])callbacks(=|\.)", lambda m: "diagnostics=" if m[1] == "=" else "", str(error))
            raise LabError(told) from cause_of(error)
        try:
            made = {name: instantiate(node) for name, node in config.callbacks.items()}
        except InstantiationException as error:
            # The constructor's own message, without Hydra's.
            raise LabError(str(error.__cause__ or error)) from cause_of(error)
        others = [str(name) for name, one in made.items() if not isinstance(one, Diagnostic | CheckpointDiagnostic)]
        if others:
            raise LabError(f"{others[0]} watches training and cannot look afterwards: leave it out of diagnostics=")
        if not made:
            raise LabError("no diagnostics: name some, as in diagnostics=[attention_entropy,linear_probes]")
        check_writable(folder, "out:")
        self.folder = folder
        self.diagnostics: list[Diagnostic | CheckpointDiagnostic] = list(made.values())
        plain: Any = OmegaConf.to_container(config.callbacks, resolve=True)
        self._options = dict(zip(self.names, plain.values(), strict=True))
        if len(self._options) < len(self.diagnostics):
            raise LabError("two diagnostics of one kind would write one file: use one after the other")
        for one in self.diagnostics:
            if ((folder / f"{one.name}.json").exists() or one.path.exists()) and not force:
                raise LabError(
                    f"{folder} holds a look of {one.name} already: give force=true to look again, or another folder "
                    "as out="
                )

    @property
    def names(self) -> list[str]:
        """Names of the diagnostics, in their order."""
        return [one.name for one in self.diagnostics]

    def check_needs(self, has: Collection[str], what: str) -> None:
        """Refuses a diagnostic that needs more than the model offers.

        Args:
            has: keys of ``NEEDS`` that the model offers.
            what: what the message calls the model.

        Raises:
            LabError: if there is such a diagnostic.
        """
        for one in self.diagnostics:
            if one.needs is not None and one.needs not in has:
                raise LabError(f"{one.name} needs {NEEDS[one.needs]}, which {what} does not have: leave it out")

    def found(
        self, subject: Subject, data: DataModule, device: torch.device, too_few: Callable[[Any, int], None] | None
    ) -> Iterator[tuple[Diagnostic | CheckpointDiagnostic, Findings]]:
        """Findings of each diagnostic: those that share one pass over the data, then the others."""
        shared = [one for one in self.diagnostics if isinstance(one, Diagnostic)]
        if shared:
            yield from zip(shared, observe(subject.model, data, shared, device, too_few=too_few), strict=True)
        for one in self.diagnostics:
            if isinstance(one, CheckpointDiagnostic):
                yield one, one.look(subject)

    def keep(
        self, one: Diagnostic | CheckpointDiagnostic, findings: Findings, facts: dict[str, Any], step: int | None
    ) -> None:
        """Writes table, arrays, pictures and a note of their origin; prints a small table and the file names."""
        pictures = one.draw_found(findings, pdf=True)
        arrays = one.keep_arrays(findings, "arrays")
        # Last, with the note: a look that is broken off has neither, and does not count.
        one.keep(findings, epoch=None, step=step)
        note = self.folder / f"{one.name}.json"
        write_json(note, {**facts, "options": self._options[one.name], **provenance()})
        written = [one.path] if findings.rows else []
        written += [] if arrays is None else [arrays]
        for picture in pictures:
            written += [picture, picture.with_suffix(".pdf")]
        _show(one.name, findings)
        for path in [*written, note]:
            tell(f"written: {path}")


def _show(name: str, findings: Findings) -> None:
    """Prints the table of findings if it is small."""
    columns = list(dict.fromkeys(column for row in findings.rows for column in row))
    if not 0 < len(findings.rows) <= _MOST_ROWS or len(columns) > _MOST_COLUMNS:
        return
    table = Table(title=name, title_justify="left")
    for column in columns:
        named = any(isinstance(row.get(column), str) for row in findings.rows)
        table.add_column(column, justify="left" if named else "right")
    for row in findings.rows:
        values = [row.get(column, "") for column in columns]
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in values))
    tables().print(table)
