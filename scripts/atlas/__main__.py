"""The atlas: every softmax on every task small enough for two CPU cores, and what the results do and do not say.

    python -m scripts.atlas --plan                       # what is done, what is missing
    python -m scripts.atlas --minutes 120 --threads 1    # trains missing cells, writes the page after each
    python -m scripts.atlas --only reasoning
    python -m scripts.atlas --page                       # writes the page of what is there

A cell is whole, and stands on the page, when every seed of it has ended. Stop it at any time: the same command goes on
where it was. Whole cells are kept beside the page (results/atlas), and stay when the runs are gone.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from lab.config.arguments import Parser
from lab.console import LabError, refusals
from lab.files import write_text
from lab.plotting.figures import save_figure
from scripts.atlas import page, retrieval
from scripts.atlas.columns import COLUMNS, Cell, cells
from scripts.atlas.retrieval import TRAINED, Retrieval
from scripts.atlas.rows import Row, all_rows
from scripts.reproduce.common import check_minutes, origin, positive, run_options, sentences
from scripts.reproduce.kept import FILE, Kept

RETRIEVAL = "max_retrieval"
_KEYS = tuple(column.key for column in COLUMNS)


def write_page(found: list[Cell], kept: Kept, plan: Retrieval, out: Path) -> None:
    """Writes the page of all whole cells, and keeps the summaries that it is made of."""
    kept.keep({run: one for cell in found for run, one in cell.ends().items()})
    text = [
        "# The atlas: which softmax has its Eureka-moment, on what, how surely",
        origin(),
        "Rows are softmaxes as they are typed after `softmax=`. A Eureka-moment is the first validation above 70 % "
        "accuracy. A cell stands here when every seed of it has ended; the same command fills the rest, on any "
        f"machine. Each run's summary is a line of [{FILE}]({FILE}), with what was typed, its commit and machine; the "
        "runs themselves lie below `--runs`.",
        *sentences(out),
    ]
    for column in COLUMNS:
        own = [cell for cell in found if cell.column is column]
        if (drawn := page.figure(own)) is not None:
            save_figure(drawn, out / f"{column.key}.png", pdf=True)
        text += page.section(column, own, out / "costs.json")
    scores = plan.scores()
    if len(scores):
        write_text(out / retrieval.FILE, scores.to_csv(index=False))
    text += retrieval.section(plan, scores)
    write_text(out / "README.md", "\n\n".join(text) + "\n")


def main(arguments: argparse.Namespace) -> None:
    """Trains missing cells, and writes the page after each."""
    check_minutes(arguments.minutes)
    threads = run_options(arguments.threads)
    further = (*threads, *run_options(None, arguments.compile))
    kept = Kept(arguments.out / FILE)
    if any(("compile=true" in run.split()) != arguments.compile for run in kept.runs()):
        other, own = ("--no-compile", "compiled") if arguments.compile else ("--compile", "not compiled")
        raise LabError(
            f"{arguments.out / FILE} holds runs of {other}, and rounding is enough to move a moment: give runs that "
            f"are {own} another --out, or add {other}"
        )
    found = cells(COLUMNS, all_rows(), arguments.runs, kept, further)
    plan = Retrieval(arguments.runs, arguments.out / retrieval.FILE, further=threads)
    rows, columns = arguments.softmax or [row.typed for row in all_rows()], arguments.only or [*_KEYS, RETRIEVAL]
    asked = [cell for cell in found if cell.column.key in columns and cell.row.typed in rows]
    retrievals = [typed for typed in TRAINED if typed in rows and RETRIEVAL in columns]
    if arguments.plan:
        for cell in asked:
            print(f"{'whole  ' if cell.whole else 'missing'}  {cell.column.key:16}  {cell.row}")
        for typed in retrievals:
            print(f"{'whole  ' if plan.whole(typed) else 'missing'}  {RETRIEVAL:16}  {Row(typed)}")
        return
    end = time.monotonic() + 60 * (float("inf") if arguments.minutes is None else arguments.minutes)
    if not arguments.page:
        for cell in asked:
            if not cell.whole and time.monotonic() < end:
                cell.train()
                write_page(found, kept, plan, arguments.out)
        for typed in retrievals:
            if not plan.whole(typed) and time.monotonic() < end:
                plan.seeds_of(typed).train()
                write_page(found, kept, plan, arguments.out)
    write_page(found, kept, plan, arguments.out)
    print(f"written: {arguments.out}")


if __name__ == "__main__":
    parser = Parser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/atlas"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=Path("results/atlas"), help="folder of the page")
    parser.add_argument("--only", nargs="+", choices=[*_KEYS, RETRIEVAL], help="train these columns alone")
    parser.add_argument(
        "--softmax",
        action="append",
        metavar="TYPED",
        choices=[row.typed for row in all_rows()],
        help="train this row alone: a softmax and its overrides",
    )
    parser.add_argument("--minutes", type=float, help="begin no further cell after so many; default: never stop")
    parser.add_argument("--threads", type=positive, default=None, help="CPU threads of each run")
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="torch.compile, as all runs of results/atlas: needs a C++ compiler on a CPU",
    )
    parser.add_argument("--plan", action="store_true", help="say what is done and what is missing; train nothing")
    parser.add_argument("--page", action="store_true", help="write the page of what is there; train nothing")
    with refusals():
        main(parser.parse_args())
