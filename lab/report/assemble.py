"""Turns gathered runs into what a page shows: text, figures and, for each number, the runs that it comes from."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hydra.errors import HydraException
from matplotlib.figure import Figure
from omegaconf.errors import OmegaConfBaseException

from lab.report import charts, figures
from lab.report.against import MatchedRow, set_beside, show_mean
from lab.report.charts import Chart
from lab.report.gather import Gathered
from lab.report.outcomes import Against, Outcome, baseline_of, compare, outcome
from lab.report.published import Table
from lab.report.records import Record
from lab.report.settings import Setting, planned, settings
from lab.report.temperatures import temperatures
from lab.runs.files import lies_in
from lab.runs.metric_names import is_accuracy


@dataclass(frozen=True)
class Drawing:
    """A figure with the words beside it.

    Attributes:
        name: of its files.
        title, reading: what the figure is and how to read it; neither depends on the runs.
        says: what it shows, in numbers computed from the drawn runs; "" where the figure has no such text.
        chart: the same curves as data, for a browser; None where there is no chart, or the figure's first part has it.
        chart_id: id of the chart that shows this figure; "" where there is none.
    """

    name: str
    title: str
    reading: str
    figure: Figure
    says: str = ""
    chart: Chart | None = None
    chart_id: str = ""


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
    draw: bool = True,
) -> Report:
    """Works out a report.

    Args:
        gathered: the runs of each folder.
        table: a published table to set beside.
        baseline: name of the setting that others are compared with; None for plain softmax in each experiment.
        confidence: of all intervals.
        draw: make the figures.

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
    sections = [_section(name, own, baseline, confidence, draw) for name, own in by_experiment.items()]
    return Report(
        roots=[part.root for part in gathered],
        runs=runs,
        damaged={folder: why for part in gathered for folder, why in part.damaged.items()},
        sections=sections,
        confidence=confidence,
        table=table,
        rows=set_beside(table, found, confidence) if table else (),
        counts=Counter(run.status for run in runs),
    )


def _section(experiment: str, own: Sequence[Setting], baseline: str | None, confidence: float, draw: bool) -> Section:
    names = [setting.name for setting in own]
    reference = baseline_of(own, baseline if baseline in names else None, lambda: _default(experiment))
    outcomes = [outcome(setting, reference, confidence) for setting in own]
    compared = compare(outcomes, reference, confidence) if reference else []
    return Section(
        experiment=experiment,
        outcomes=outcomes,
        baseline=reference,
        comparisons={against.setting.name: against for against in compared},
        drawings=_drawings(experiment, own, confidence) if draw else (),
        pictures=_pictures(own),
    )


def _default(experiment: str) -> Mapping[str, Any] | None:
    """Returns an experiment's config without overrides; None for an experiment that the lab does not know."""
    # The name may be a stranger's text: only a plain word goes into an override, in quotes, which make null a word.
    if re.fullmatch(r"[\w/-]+", experiment):
        with suppress(HydraException, OmegaConfBaseException):
            return planned([f"experiment='{experiment}'"])
    return None


def _drawings(experiment: str, own: Sequence[Setting], confidence: float) -> list[Drawing]:
    found: list[Drawing] = []
    styles = figures.line_styles_of(own)

    def add(
        name: str,
        title: str,
        reading: str,
        drawn: Sequence[Figure | None],
        chart: Chart | None = None,
        says: Sequence[str] = (),
    ) -> None:
        sentences = says or [""] * len(drawn)
        there = [(figure, text) for figure, text in zip(drawn, sentences, strict=True) if figure is not None]
        for number, (figure, text) in enumerate(there, start=1):
            part = f" ({number} of {len(there)})" if len(there) > 1 else ""
            suffix = f"_{number}" if len(there) > 1 else ""
            whole = f"{file_name(experiment)}_{name}"
            drawing = Drawing(whole + suffix, title + part, reading, figure, text, chart if number == 1 else None)
            found.append(replace(drawing, chart_id=whole) if chart else drawing)

    for quantity in _QUANTITIES:
        by_epoch = charts.curves_chart(own, quantity, styles)
        for aligned in (False, True):
            name = f"{quantity}_{'by_moment' if aligned else 'by_epoch'}"
            drawn = figures.in_parts(own, partial(figures.curves, quantity=quantity, aligned=aligned, styles=styles))
            of = f"{file_name(experiment)}_{quantity}_by_epoch"
            chart = charts.aligned_chart(own, quantity, styles, of) if aligned and by_epoch else by_epoch
            add(
                name,
                f"{quantity.capitalize()} of all seeds, "
                + ("aligned by their Eureka-moments" if aligned else "by epoch"),
                _SEEDS + _READINGS[quantity, aligned],
                drawn,
                chart,
            )
    add(
        "survival",
        "No Eureka-moment yet (Kaplan-Meier)",
        "The share of seeds without a moment so far. A bar (|) marks the epoch at which a run ended without a moment: "
        "the run counts up to this epoch, and not as one that never has a moment.",
        [figures.survival(own, confidence, styles=styles)],
        charts.survival_chart(own, confidence, "Eureka-moment", styles),
    )
    add(
        "change_points",
        "No change point yet (Kaplan-Meier)",
        "The share of seeds without a change point so far. A change point is the steepest rise or fall between two "
        "plateaus of the watched metric, found without a threshold.",
        [figures.survival(own, confidence, of="change point", styles=styles)],
        charts.survival_chart(own, confidence, "change point", styles),
    )
    add(
        "learning_rates",
        "Robustness to the learning rate",
        "How many of the finished seeds have a Eureka-moment, at each learning-rate schedule (Table 2 of the paper "
        "pools all schedules of a row).",
        [figures.learning_rates(own)],
    )
    add(
        "gradients",
        "Gradients of W_Q, W_K and W_V",
        "Mean |gradient| in the first layer, first finished seed; the time before the Eureka-moment is grey (Figure 4 "
        "of the paper).",
        [figures.gradients(part) for part in figures.parts(own)],
        says=[figures.gradient_shares(part) for part in figures.parts(own)],
    )
    add(
        "temperatures",
        "Temperatures over training",
        "Quantities of temperature rules and normalisers that change during training; first finished seed, a "
        "line for each layer. If a quantity has a value for each head, the line is the mean over heads, and one "
        "standard deviation is shaded.",
        [temperatures(part) for part in figures.parts(own)],
    )
    return found


def file_name(experiment: str) -> str:
    """Returns a safe name for an experiment's files, since a summary may name it ``../elsewhere``."""
    if re.fullmatch(r"\w[\w.=,+-]{0,79}", experiment, re.ASCII):
        return experiment
    digest = hashlib.blake2b(experiment.encode(errors="backslashreplace"), digest_size=4).hexdigest()
    plain = re.sub(r"[^\w.=,+-]+", "-", experiment, flags=re.ASCII)[:60].strip(".-")
    return f"{plain}-{digest}"


_QUANTITIES: tuple[charts.Quantity, ...] = ("accuracy", "loss")
_SEEDS = (
    "Validation curves: thin lines are seeds, the bold line is their median over the epochs that all finished seeds "
    "were trained for, and the band holds the middle half of the seeds. "
)
_READINGS = {
    ("accuracy", False): "A star is a Eureka-moment, a dotted line the threshold that this accuracy has to pass, "
    "a dashed line what the prior p(z) alone can reach (the plateau; where it differs by seed, the mean over seeds). A "
    "line is missing where the moment is found in another metric, or such a height is not known.",
    ("accuracy", True): "Seeds without a moment are left out. "
    "The steeper a line is at 0, the more abrupt is the moment.",
    ("loss", False): "If the moment is found in the loss, stars and further lines mean the same as in the figure "
    "of accuracy.",
    ("loss", True): "Seeds without a moment are left out.",
}


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


# --- what tables show --------------------------------------------------------------------------------------------


def setting_row(found: Outcome, against: Against | None) -> dict[str, str]:
    """One setting as text, by column title."""
    setting = found.setting
    others = Counter(run.status for run in setting.runs if not run.finished)
    unfinished = ", ".join(f"{count} {status}" for status, count in sorted(others.items()))
    row = {
        "seeds finished": f"{len(setting.finished)}" + (f" (and {unfinished})" if unfinished else ""),
        "Eureka-ratio": _ratio(found),
        "accuracy after the moment, %": show_mean(found.accuracy, 2) if found.accuracy else "",
        "accuracy without one, %": show_mean(found.plateau, 2) if found.plateau else "",
        **(
            {f"{setting.metric} at the end{_unit(setting)}": show_mean(found.watched, _digits(setting))}
            if found.watched
            else {}
        ),
        "mean Eureka-epoch": show_mean(found.eureka_epoch, 1) if found.eureka_epoch else "",
        "median epoch to the moment": str(found.median) if found.median else "",
    }
    if found.change_ratio or found.change_median:
        row |= {
            "change point, ratio": str(found.change_ratio or ""),
            "change point, median epoch": str(found.change_median or ""),
        }
    if found.reach:
        ratios = {f"95 %-ratio ({name})": ratio for name, ratio in found.reach.ratio_95.items()}
        row |= {"% of steps": _percent(found), **ratios}
    if against is not None:
        row |= {
            "ratio, p": _p(against.ratio),
            "time to the moment, p": _p(against.time),
            **({"time to the change point, p": _p(against.change_time)} if against.change_time is not None else {}),
            f"{setting.metric}, difference": _difference(against),
            f"{setting.metric}, p": _p(against.watched_p),
        }
    return row


def compares(column: str) -> bool:
    """Tells whether a column compares a setting with the baseline; other columns describe the setting alone."""
    return column.endswith((", p", ", difference")) or column.startswith(("% of steps", "95 %-ratio"))


def _ratio(found: Outcome) -> str:
    if found.exact is None or found.counts:
        return found.told_ratio()
    return f"{str(found.ratio)[:-1]}; exact {found.exact.interval})"


def _percent(found: Outcome) -> str:
    return f"{found.reach.percent_of_steps:.1f}" if found.reach and found.reach.percent_of_steps is not None else ""


def _p(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if value >= 0.001 else "< 0.001"


def _unit(setting: Setting) -> str:
    return ", %" if is_accuracy(setting.metric) else ""


def _digits(setting: Setting) -> int:
    return 2 if is_accuracy(setting.metric) else 3


def _difference(against: Against) -> str:
    if against.watched is None:
        return ""
    digits = _digits(against.setting)
    mean, low, high = (f"{value:+.{digits}f}" for value in against.watched)
    # Equal differences say nothing about their spread.
    interval = f"{low} to {high}; " if against.watched[1] < against.watched[2] else "all "
    return f"{mean} ({interval}{against.seeds} seeds)"


def run_row(setting: Setting, run: Record, out: Path) -> dict[str, Any]:
    """One run as plain values, for ``runs.csv`` and the lists of runs; its folder is relative to ``out``."""
    summary = run.summary
    machine = summary.machine
    return {
        "experiment": setting.experiment,
        "setting": setting.name,
        "seed": run.seed,
        "status": run.status,
        "moment_epoch": run.moment,
        "change_epoch": run.change,
        "change_strength": summary.eureka.change.strength if summary.eureka.change else None,
        "accuracy": run.accuracy,
        "watched": summary.eureka.metric,
        "watched_value": summary.watched,
        "epochs": run.epochs,
        "validated_epochs": run.validated_epochs,
        "watched_until": run.watched_until,
        "samples": summary.samples,
        "wall_seconds": summary.wall_seconds,
        "counted": run in setting.runs and run.finished,
        "looked": run in setting.runs and run.watched_for,
        "commit": summary.git.commit,
        "machine": machine.get("gpu") or machine.get("processor"),
        "written": summary.written,
        "command": summary.command,
        "error": summary.error,
        "folder": os.path.relpath(run.folder, out),
    }


def link(folder: Path, out: Path) -> str:
    """A link from a page in ``out`` to a folder or file."""
    return quote(os.fsencode(Path(os.path.relpath(folder, out)).as_posix()))
