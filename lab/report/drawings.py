"""The figures of a report, each with the words that stand beside it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from matplotlib.figure import Figure

from lab.console import printable
from lab.report import charts, figures
from lab.report.charts import Chart
from lab.report.settings import Setting
from lab.report.temperatures import temperatures
from lab.report.titles import titles_of

# Most settings that the alternative text of a figure names.
_MOST_TOLD = 6
_QUANTITIES: tuple[charts.Quantity, ...] = ("accuracy", "loss")
_SEEDS = (
    "Validation curves: a thin line is a seed. A bold line is the median of a setting's finished seeds over the epochs "
    "that all of these were trained for, where they are three or more, and the band around it holds the middle half of "
    "these. "
)
_READINGS = {
    ("accuracy", False): "A star is a Eureka-moment, a dotted line the threshold that this accuracy has to pass, "
    "a dashed line what the prior p(z) alone can reach (the plateau; where it differs by seed, the mean over seeds). A "
    "line is missing where the moment is found in another metric, where the height is not known, or where settings "
    "differ (plateaus by more than 2 %).",
    ("accuracy", True): "Seeds without a moment are left out. "
    "The steeper a line is at 0, the more abrupt is the moment.",
    ("loss", False): "If the moment is found in the loss, stars and further lines mean the same as in the figure "
    "of accuracy; the dashed line is the loss of the prior alone (prior_loss in summary.json).",
    ("loss", True): "Seeds without a moment are left out.",
}


@dataclass(frozen=True)
class Drawing:
    """A figure with the words beside it.

    Attributes:
        name: of its files.
        title, reading: what the figure is and how to read it; neither depends on what the runs have measured.
        alt: alternative text: what the figure is of.
        part: "(1 of 2)" for one of several figures that show the settings between them, else "".
        says: what it shows, in numbers computed from the drawn runs; "" where the figure has no such text.
        chart: the same curves as data, for a browser; None where there is no chart, or the figure's first part has it.
        chart_id: id of the chart that shows this figure; "" where there is none.
    """

    name: str
    title: str
    reading: str
    alt: str
    figure: Figure
    part: str = ""
    says: str = ""
    chart: Chart | None = None
    chart_id: str = ""


def drawings_of(experiment: str, own: Sequence[Setting], confidence: float) -> list[Drawing]:
    """All figures of an experiment's settings, in the order in which a page shows them.

    Args:
        experiment: its name, of which the names of files are made.
        own: its settings.
        confidence: of all intervals.
    """
    found: list[Drawing] = []
    styles, titles = figures.line_styles_of(own), titles_of(own)

    def add(
        name: str,
        title: str,
        reading: str,
        drawn: Sequence[Figure | None],
        chart: Chart | None = None,
        says: Sequence[str] = (),
        told: Sequence[str] = (),
    ) -> None:
        sentences = says or [""] * len(drawn)
        there = [(figure, text) for figure, text in zip(drawn, sentences, strict=True) if figure is not None]
        shown = [told or _panels(figure) for figure, _ in there]
        for number, (figure, text) in enumerate(there, start=1):
            part = f"({number} of {len(there)})" if len(there) > 1 else ""
            suffix = f"_{number}" if len(there) > 1 else ""
            whole = f"{file_name(experiment)}_{name}"
            first = f"{title}, {experiment}"
            own_chart = {**chart, "alt": _alt(first, [*chain(*shown)])} if chart and number == 1 else None
            alt = _alt(f"{first} {part}".strip(), shown[number - 1])
            drawing = Drawing(whole + suffix, title, reading, alt, figure, part, text, own_chart)
            found.append(replace(drawing, chart_id=whole) if chart else drawing)

    for quantity in _QUANTITIES:
        by_epoch = charts.curves_chart(own, quantity, styles)
        for aligned in (False, True):
            name = f"{quantity}_{'by_moment' if aligned else 'by_epoch'}"
            draw = partial(figures.curves, quantity=quantity, aligned=aligned, styles=styles, titles=titles)
            drawn = figures.in_parts(own, draw)
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
        told=_counts(own, "Eureka-moment"),
    )
    add(
        "change_points",
        "No change point yet (Kaplan-Meier)",
        "The share of seeds without a change point so far. A change point is the steepest rise or fall between two "
        "plateaus of the watched metric, found without a threshold.",
        [figures.survival(own, confidence, of="change point", styles=styles)],
        charts.survival_chart(own, confidence, "change point", styles),
        told=_counts(own, "change point"),
    )
    add(
        "learning_rates",
        "Robustness to the learning rate",
        "How many of the seeds that finished or diverged have a Eureka-moment, at each learning-rate schedule (Table 2 "
        "of the paper pools all schedules of a row).",
        [figures.learning_rates(own)],
        told=list(figures.rate_grid(own)[0]),
    )
    add(
        "gradients",
        "Gradients of W_Q, W_K and W_V",
        "Mean |gradient| in the first layer, first finished seed; the time before the Eureka-moment is grey (Figure 4 "
        "of the paper).",
        [figures.gradients(part, titles) for part in figures.parts(own)],
        says=[figures.gradient_shares(part) for part in figures.parts(own)],
    )
    add(
        "temperatures",
        "Temperatures over training",
        "Quantities of temperature rules and normalisers that change during training; first finished seed, a "
        "line for each layer. If a quantity has a value for each head, the line is the mean over heads, and one "
        "standard deviation is shaded.",
        [temperatures(part, titles) for part in figures.parts(own)],
    )
    return found


def _alt(what: str, told: Sequence[str]) -> str:
    more = [f"and {len(told) - _MOST_TOLD} more"] if len(told) > _MOST_TOLD else []
    return printable(f"{what}: {'; '.join([*told[:_MOST_TOLD], *more])}")


def _panels(figure: Figure) -> list[str]:
    """Titles of a figure's panels, each on one line."""
    titles = [axes.get_title().replace("\n", " ").replace(r"\$", "$") for axes in figure.axes]
    return [title for title in dict.fromkeys(titles) if title]


def _counts(own: Sequence[Setting], of: figures.Event) -> list[str]:
    """Lists for each line of a survival figure how many of its seeds had the event."""
    lines = [(line.name, len(line.times.moments), len(line.times.ends)) for line in figures.waiting(own, of)]
    return [f"{name}: {had} of {had + without} seeds had a {of}" for name, had, without in lines]


def file_name(experiment: str) -> str:
    """Returns a safe name for an experiment's files, since a summary may name it ``../elsewhere``."""
    if re.fullmatch(r"\w[\w.=,+-]{0,79}", experiment, re.ASCII):
        return experiment
    digest = hashlib.blake2b(experiment.encode(errors="backslashreplace"), digest_size=4).hexdigest()
    plain = re.sub(r"[^\w.=,+-]+", "-", experiment, flags=re.ASCII)[:60].strip(".-")
    return f"{plain}-{digest}"
