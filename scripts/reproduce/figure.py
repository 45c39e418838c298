"""Reproduces figures of the papers with training behind them, each by one command.

    python -m scripts.reproduce.figure --list                         # what is done, and how long the rest takes
    python -m scripts.reproduce.figure 4 --size small                 # of Eureka-moments in Transformers, on two cores
    python -m scripts.reproduce.figure softmax:2 --size small         # of "softmax is not enough"
    python -m scripts.reproduce.figure all --size small --minutes 120
    python -m scripts.reproduce.figure 4 11 trainer=gpu compile=true  # as published; overrides of every run at the end

Trains what is missing, after it has said how long that takes; draws the paper's layout, writes a page and the index of
all pages. Figures that are drawn of the same runs share them. Stop it at any time: the same command goes on.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from lab.config.arguments import Parser
from lab.config.overrides import quoted
from lab.console import LabError, refusals, tell
from lab.files import write_text
from lab.plotting.figures import save_figure
from lab.runs.summary import load_summary
from scripts.reproduce.common import markdown, origin, refuse_keys, run_script, tell_duration, within
from scripts.reproduce.drawings.runs import Shown
from scripts.reproduce.plan import (
    DRAWN,
    SIZES,
    FigureSpec,
    Listed,
    Run,
    SizeName,
    Speeds,
    drawings,
    families,
    full_name,
    how_many_there,
    listed,
    load,
    names,
    runs_of,
)


def runs_at(spec: FigureSpec, size: SizeName, further: Sequence[str]) -> list[Run]:
    """The runs that a figure is drawn of at a size.

    Raises:
        LabError: if it has no such size.
    """
    own = spec.at(size)
    if own is None:
        raise LabError(f"{spec.number} has no {size} size")
    return runs_of(own.family, own.runs or {}, further)


def page_of(spec: FigureSpec, size: SizeName, out: Path) -> Path:
    """Path of a figure's page, which may not be written yet."""
    return Path(spec.page) if spec.page else out / size / spec.name / "README.md"


def draw(spec: FigureSpec, size: SizeName, runs: Sequence[Run], out: Path) -> None:
    """Draws a figure of finished runs and writes its page.

    Raises:
        LabError: if a run does not hold what the layout shows.
    """
    own = spec.at(size)
    assert own is not None and spec.draw is not None
    page = page_of(spec, size, out)
    shown = [Shown(run.name, run.label, run.folders) for run in runs]
    save_figure(drawings(DRAWN["draw"])[spec.draw](shown, **own.options), page.with_name("figure.png"))
    numbers = []
    if spec.numbers is not None:
        what, table = drawings(DRAWN["numbers"])[spec.numbers](shown, **own.options)
        numbers = [f"{what}:", markdown(table)]
    text = [
        f"# {spec.heading}, {size}: {spec.title}",
        origin(),
        f"The paper's: {spec.shows}",
        *([families()[own.family].note] if runs and families()[own.family].note else []),
        *spec.notes,
        *own.notes,
        "![Figure](figure.png)",
        *numbers,
        *([markdown(runs_table(runs))] if runs else []),
        *([f"A Eureka-moment is the first validation above {threshold(runs)}."] if threshold(runs) else []),
    ]
    write_text(page, "\n\n".join(text) + "\n")
    print(f"written: {page}")


def runs_table(runs: Sequence[Run]) -> pd.DataFrame:
    """One row per run: how far it came, its moment, and what to type for it."""
    rows = []
    for run in runs:
        for seed, folder in zip(run.seeds, run.folders, strict=True):
            summary = load_summary(folder)
            rows.append(
                {
                    "run": run.label,
                    "seed": str(seed),
                    "epochs": f"{summary.epochs:,}",
                    "Eureka-epoch": f"{summary.moment:,}" if summary.moment is not None else "none",
                    "final accuracy": f"{summary.accuracy:.1%}" if summary.accuracy is not None else "",
                    "overrides": f"`{' '.join(o for o in run.overrides if not o.startswith('paths.'))}`",
                }
            )
    return pd.DataFrame(rows)


def threshold(runs: Sequence[Run]) -> str:
    """The accuracy that a Eureka-moment has to pass; "" where none is looked for."""
    found = {load_summary(folder).eureka.threshold for run in runs for folder in run.folders}
    return " or ".join(f"{one:.0%}" for one in sorted(one for one in found if one is not None))


def index(out: Path) -> str:
    """The index of all figures: links to the pages that exist, and the commands for the others."""
    rows = []
    for name in names():
        spec = load(name)
        row = {"figure": name, "of": spec.title, "the paper's": spec.shows}
        for size in SIZES:
            page = page_of(spec, size, out)
            if spec.page is None and spec.at(size) is None:
                row[size] = "-"
            elif spec.page is not None:
                page_there = f"[page]({os.path.relpath(spec.page, out)})"
                row[size] = page_there if size == "published" else "as published: two cores settle it"
            elif page.exists():
                row[size] = f"[page]({page.relative_to(out)})"
            else:
                row[size] = f"not made: `python -m scripts.reproduce.figure {name} --size {size}`"
        rows.append(row)
    table = markdown(pd.DataFrame(rows))
    words = "Figures with training behind them, of the papers and here. `small` is a version for two CPU cores."
    return f"# Figures of the papers\n\n{words}\n\n{table}\n"


def rows_of_list(out: Path, further: Sequence[str], figures: Sequence[str]) -> Iterator[Listed]:
    """A row of ``--list`` for each figure and size: whether its page exists, how many of its runs are there."""
    for name in figures:
        spec = load(name)
        for size in SIZES:
            if spec.at(size) is None and not (spec.script and size == "published"):
                continue
            stands = "page stands" if page_of(spec, size, out).exists() else "no page"
            if spec.script:
                yield Listed(name, size, f"{stands:11}  python -m {spec.script}")
            else:
                runs = runs_at(spec, size, further)
                trained = how_many_there(runs) if runs else "a formula: nothing to train"
                yield Listed(name, size, f"{stands:11}  {trained}", runs)


def main(arguments: argparse.Namespace) -> None:
    """Trains, draws and writes what was asked for.

    Raises:
        LabError: if a figure, size or override does not exist, or runs fail.
    """
    words: list[str] = arguments.words
    asked, further = [word for word in words if "=" not in word], [word for word in words if "=" in word]
    seeds = "the seeds are those of the figure"
    refuse_keys(further, {"seed": seeds, "seeds": seeds, "paths.runs": "give --runs"})
    further.append(f"paths.runs={quoted(arguments.runs)}")
    if arguments.list:
        chosen = names() if asked in ([], ["all"]) else [full_name(name) for name in asked]
        for line in listed([*rows_of_list(arguments.out, further, chosen)]):
            print(line, flush=True)
        return
    if not asked:
        raise LabError("name a figure, such as 4 or softmax:2, or all; --list names them")
    size: SizeName = arguments.size
    everything = asked == ["all"]
    specs = [load(name) for name in (names() if everything else asked)]
    if everything:
        apart = [spec.number for spec in specs if spec.script and size == "published"]
        if apart:
            told = " and ".join(f"python -m scripts.reproduce.figure {number}" for number in apart)
            tell(f"left out, since it has a command of its own: {told}")
        specs = [spec for spec in specs if spec.at(size) is not None]
    for spec in [spec for spec in specs if spec.script]:
        assert spec.script is not None
        run_script(spec.number, spec.script, [word for word in arguments.typed if word not in asked])
    drawn = [(spec, runs_at(spec, size, further)) for spec in specs if not spec.script]
    failed, speeds, runs = [], Speeds(), list[Run]()
    for spec, own in list(drawn):
        try:
            speeds.seconds_left(own)
        except LabError as error:
            # A figure that cannot be trained here does not stop the others.
            failed.append(f"{spec.number}: {error}")
            drawn.remove((spec, own))
        else:
            runs += own
    if seconds := speeds.seconds_left(runs):
        tell_duration(f"{sum(not run.finished for run in dict.fromkeys(runs))} settings", seconds)
    with within(arguments.minutes):
        for spec, own in drawn:
            # A list, not a generator: all runs are trained even if one fails.
            if all([run.train() for run in own]):
                try:
                    draw(spec, size, own, arguments.out)
                except LabError as error:
                    failed.append(f"{spec.number}: {error}")
            else:
                failed.append(f"{spec.number}: a run has failed, for the reason above")
    write_text(arguments.out / "README.md", index(arguments.out))
    if failed:
        raise LabError("; ".join(failed))


if __name__ == "__main__":
    parser = Parser(description=__doc__)
    parser.add_argument("words", nargs="*", help="figures, such as 4, eureka:4 or softmax:2, or all; then overrides")
    parser.add_argument("--size", choices=SIZES, default="published")
    parser.add_argument("--list", action="store_true", help="every figure: what is done, and how long the rest takes")
    parser.add_argument("--runs", type=Path, default=Path("runs/figures"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=Path("results/figures"), help="folder of the pages")
    parser.add_argument("--minutes", type=float, help="stop after so many; the same command goes on")
    parsed = parser.parse_intermixed_args()
    parsed.typed = sys.argv[1:]
    with refusals():
        main(parsed)
