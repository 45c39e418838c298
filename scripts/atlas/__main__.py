"""The atlas: every softmax on every task that two cores can settle, with what it says and what it does not.

    python -m scripts.atlas --plan                       # what stands, what is missing
    python -m scripts.atlas --minutes 120 --threads 1    # trains missing cells, writes the page after each
    python -m scripts.atlas --only reasoning
    python -m scripts.atlas --page                       # writes the page of what is there

Whole seeds only: a cell stands on the page when every seed of it has ended. Stop it at any time: the same command goes
on where it was, on this machine or another one with the same folder of runs.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from lab.console import refusals
from lab.plotting.figures import save_figure
from lab.runs.files import write_text
from scripts.atlas import page, retrieval
from scripts.atlas.columns import COLUMNS, Cell, cells
from scripts.atlas.retrieval import TRAINED, Retrieval
from scripts.atlas.rows import Row, all_rows
from scripts.reproduce.common import origin

RETRIEVAL = "max_retrieval"


def write_page(found: list[Cell], plan: Retrieval | None, out: Path, runs: Path, command: str) -> None:
    """Writes the page of everything that is whole."""
    text = [
        "# The atlas: which softmax has its Eureka-moment, on what, how surely",
        origin(command),
        "Rows are softmaxes as they are typed after `softmax=`. A Eureka-moment is the first validation above 70 % "
        "accuracy. A cell stands here when every seed of it has ended; the same command fills the rest. Runs lie below "
        "`--runs`, `<column>/seeds` and `<column>/trials`, and `python -m lab.report <folder>` shows each.",
    ]
    if (said := out / "sentences.md").exists():
        text += ["## What it says, and what it does not", said.read_text(encoding="utf-8").strip()]
    for column in COLUMNS:
        own = [cell for cell in found if cell.column is column]
        if not own:
            continue
        if (drawn := page.figure(column, own)) is not None:
            save_figure(drawn, out / f"{column.key}.png", pdf=True)
        text += page.section(column, own, runs / "costs.json")
    if plan is not None:
        scores = plan.scores()
        write_text(out / "max_retrieval.csv", scores.to_csv(index=False))
        text += retrieval.section(plan, scores)
    write_text(out / "README.md", "\n\n".join(text) + "\n")


def main(arguments: argparse.Namespace) -> None:
    """Trains missing cells, and writes the page after each."""
    further = tuple(
        option
        for option in (
            f"threads={arguments.threads}" if arguments.threads else "",
            "compile=true" if arguments.compile else "",
        )
        if option
    )
    rows = [Row(typed) for typed in arguments.softmax] if arguments.softmax else all_rows()
    columns = [column for column in COLUMNS if not arguments.only or column.key in arguments.only]
    found = cells(columns, rows, arguments.runs, further)
    plan = None
    if not arguments.only or RETRIEVAL in arguments.only:
        plan = Retrieval(arguments.runs, further=tuple(one for one in further if one.startswith("threads")))
    if arguments.plan:
        for cell in found:
            print(f"{'whole  ' if cell.whole else 'missing'}  {cell.column.key:16}  {cell.row}")
        for typed in TRAINED if plan else ():
            print(f"{'whole  ' if plan and plan.whole(typed) else 'missing'}  {RETRIEVAL:16}  {Row(typed)}")
        return
    command = "python -m scripts.atlas" + "".join(f" {word}" for word in arguments.typed)
    end = time.monotonic() + 60 * arguments.minutes if arguments.minutes else float("inf")
    if not arguments.page:
        for cell in found:
            if not cell.whole and time.monotonic() < end:
                cell.train()
                write_page(found, plan, arguments.out, arguments.runs, command)
        for typed in TRAINED if plan else ():
            if plan and not plan.whole(typed) and time.monotonic() < end:
                plan.train(typed)
                write_page(found, plan, arguments.out, arguments.runs, command)
    write_page(found, plan, arguments.out, arguments.runs, command)
    print(f"written: {arguments.out}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/atlas"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=Path("results/atlas"), help="folder of the page")
    parser.add_argument("--only", nargs="+", choices=[*(c.key for c in COLUMNS), RETRIEVAL], help="columns")
    parser.add_argument("--softmax", action="append", metavar="TYPED", help="a row alone: a softmax and its overrides")
    parser.add_argument("--minutes", type=float, default=0, help="begin no further cell after so many; 0: never stop")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of each run")
    parser.add_argument("--compile", action="store_true", help="torch.compile: needs a C++ compiler on a CPU")
    parser.add_argument("--plan", action="store_true", help="say what stands and what is missing; train nothing")
    parser.add_argument("--page", action="store_true", help="write the page of what is there; train nothing")
    parsed = parser.parse_args()
    parsed.typed = [word if " " not in word else f'"{word}"' for word in sys.argv[1:]]
    with refusals():
        main(parsed)
