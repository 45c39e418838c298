"""Turns gathered runs into what a page shows: text, figures and, for each number, the runs that it comes from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from lab.console import counted, noted_if_slow, tell
from lab.files import lies_in
from lab.report.against import MatchedRow, set_beside
from lab.report.drawings import Drawing, drawings_of
from lab.report.gather import Gathered
from lab.report.outcomes import Against, Outcome, baseline_of, compare, outcome
from lab.report.published import Table
from lab.report.records import Record
from lab.report.rows import setting_row
from lab.report.settings import Setting, planned, settings


@dataclass(frozen=True)
class Section:
    """One experiment.

    Attributes:
        comparisons: name of each other setting -> its comparison with the baseline; empty without a baseline.
        pictures: setting -> the run whose diagnostics are shown, and their files.
    """

    experiment: str
    outcomes: Sequence[Outcome]
    baseline: Setting | None
    comparisons: Mapping[str, Against]
    drawings: Sequence[Drawing]
    pictures: Sequence[tuple[Setting, Record, Sequence[Path]]]

    @property
    def names(self) -> list[str]:
        """Names of its settings."""
        return [found.setting.name for found in self.outcomes]

    def cells(self, found: Outcome) -> dict[str, str]:
        """One of the outcomes as text, by column title."""
        return setting_row(found, self.comparisons.get(found.setting.name))


@dataclass(frozen=True)
class Report:
    """Everything that a report says, before it is written."""

    roots: Sequence[Path]
    runs: Sequence[Record]
    damaged: Mapping[Path, str]
    sections: Sequence[Section]
    confidence: float
    table: Table | None = None
    rows: Sequence[MatchedRow] = ()
    counts: Mapping[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Folders and how many runs and settings, in one line: all that it holds would fill a notebook."""
        of = f"{counted(len(self.runs), 'run')} in {counted(len(self.settings), 'setting')}"
        damaged = f", {len(self.damaged):,} damaged" if self.damaged else ""
        return f"Report({', '.join(map(str, self.roots))}: {of}{damaged})"

    @property
    def settings(self) -> list[Setting]:
        """All settings, in the order of their sections."""
        return [found.setting for section in self.sections for found in section.outcomes]

    @property
    def drawings(self) -> list[Drawing]:
        """All figures, in the order of their sections."""
        return [drawing for section in self.sections for drawing in section.drawings]


def assemble(
    gathered: Sequence[Gathered],
    table: Table | None = None,
    baseline: str | None = None,
    confidence: float = 0.95,
) -> Report:
    """Works out a report.

    Args:
        gathered: the runs of each folder.
        table: a published table to set beside.
        baseline: name of the setting that others are compared with; None for plain softmax in each experiment, which
            also stands in for it in an experiment without such a setting (this is told).
        confidence: of all intervals.

    Raises:
        LabError: if no setting is called ``baseline``, or no run is a row of ``table``.
    """
    # Folders may lie inside each other: every run counts once.
    runs = list({run.folder.resolve(): run for part in gathered for run in part.runs}.values())
    found = settings(runs)
    if baseline is not None:
        baseline_of(found, baseline)
    by_experiment: dict[str, list[Setting]] = {}
    for setting in found:
        by_experiment.setdefault(setting.experiment, []).append(setting)
    rows = set_beside(table, found, confidence) if table else ()
    with noted_if_slow(f"comparing and drawing {counted(len(found), 'setting')}"):
        sections = [_section(name, own, baseline, confidence) for name, own in by_experiment.items()]
    for one in sections:
        if baseline not in (None, *one.names):
            instead = f"are compared with {one.baseline.name}" if one.baseline else "are not compared"
            tell(f"no setting of {one.experiment} is called {baseline!r}: its settings {instead}")
    return Report(
        roots=[part.root for part in gathered],
        runs=runs,
        damaged={folder: why for part in gathered for folder, why in part.damaged.items()},
        sections=sections,
        confidence=confidence,
        table=table,
        rows=rows,
        counts=Counter(run.status for run in runs),
    )


def _section(experiment: str, own: Sequence[Setting], baseline: str | None, confidence: float) -> Section:
    names = [setting.name for setting in own]
    reference = baseline_of(own, baseline if baseline in names else None, lambda: _default(experiment))
    outcomes = [outcome(setting, reference, confidence) for setting in own]
    compared = compare(outcomes, reference, confidence) if reference else []
    return Section(
        experiment=experiment,
        outcomes=outcomes,
        baseline=reference,
        comparisons={against.setting.name: against for against in compared},
        drawings=drawings_of(experiment, own, confidence),
        pictures=_pictures(own),
    )


def _default(experiment: str) -> Mapping[str, Any] | None:
    """Returns an experiment's config without overrides; None for an experiment that the lab does not know."""
    # The name may be a stranger's text: only a plain word goes into an override, in quotes, which make null a word.
    if re.fullmatch(r"[\w/-]+", experiment):
        with suppress(HydraException, OmegaConfBaseException):
            return planned([f"experiment='{experiment}'"])
    return None


def _pictures(own: Sequence[Setting]) -> list[tuple[Setting, Record, Sequence[Path]]]:
    """Finds the pictures that diagnostics drew, of the first run of a setting that has any."""
    found: list[tuple[Setting, Record, Sequence[Path]]] = []
    for setting in own:
        for run in setting.runs:
            # A link to elsewhere would bring any file of this machine into a page that is passed on.
            named = sorted((run.folder / "pictures").glob("*.png"))
            files = [path for path in named if path.is_file() and lies_in(path, run.folder)]
            if files:
                found.append((setting, run, files))
                break
    return found
