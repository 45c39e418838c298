"""Page of the GPU kit: its steps, and the main task's Eureka-moments beside the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from lab.report.published import load
from lab.runs.summary import read_summary
from lab.runs.walk import walk_runs
from scripts.gpu.record import Record
from scripts.gpu.steps import MOMENTS, START, Places, Step
from scripts.reproduce.common import markdown, origin

# To reach: 300 epochs of the main task in 250 seconds on an H200.
TARGET_SECONDS, EPOCHS, EPOCH_SIZE = 250, 300, 60_000


def page(plan: Sequence[Step], record: Record, places: Places, command: str) -> str:
    """The page of all steps, as far as they have come."""
    rows = []
    for step in plan:
        done = record.done.get(step.name)
        found = [name for name in step.pages if (places.results / name).exists()]
        rows.append(
            {
                "step": f"[{step.name}](logs/{step.name}.txt)" if done else step.name,
                "status": done.status if done else "not begun",
                "seconds": f"{done.seconds:.0f}" if done else "",
                "device": done.device if done else "",
                "date": done.date[:16] if done else "",
                "page": ", ".join(f"[{name}]({name})" for name in found),
                "last line": done.said.replace("|", "\\|") if done else "",
            }
        )
    commands = [f"{done.command}   # {name}" for name, done in record.done.items()]
    return "\n\n".join(
        [
            "# With a GPU: tests, speed, Eureka-moments of the main task, Table 1",
            origin(command),
            markdown(pd.DataFrame(rows)),
            "## The main task to its Eureka-moments",
            moments(places),
            "## Commands",
            "```bash\n" + "\n".join(commands) + "\n```" if commands else "None yet.",
            "",
        ]
    )


def moments(places: Places) -> str:
    """Table of the runs that end at their moment, beside the paper's, with the time that 300 epochs would take."""
    published = {row.overrides: row.cells for row in load("eureka/table_1").rows if row.group == "Main dataset"}
    rows: list[dict[str, Any]] = []
    for found in walk_runs(places.runs / "moments"):
        summary = read_summary(found.path)
        own = [name for name, (softmax, _) in MOMENTS.items() if summary and f"softmax={softmax}" in summary.overrides]
        if summary is None or not own:
            continue
        row = MOMENTS[own[0]][1]
        theirs = published[(f"+row={row}",)]
        speed = summary.samples_per_second
        rows.append(
            {
                "softmax": own[0],
                "status": summary.status,
                "epochs": summary.epochs,
                "Eureka-epoch": "none yet" if summary.moment is None else summary.moment,
                "paper, mean": theirs["eureka_epoch"].mean,
                "seconds": f"{summary.wall_seconds or 0:.0f}",
                "accuracy": "" if summary.accuracy is None else f"{summary.accuracy:.1%}",
                "images/s": "" if not speed else f"{speed:,.0f}",
                f"{EPOCHS} epochs at this speed, s": "" if not speed else f"{EPOCHS * EPOCH_SIZE / speed:.0f}",
            }
        )
    if not rows:
        return "No run yet."
    told = (
        f"One seed each, with {' '.join(START)}; a run ends at its moment. To reach: {EPOCHS} epochs in "
        f"{TARGET_SECONDS} s on an H200. Validations are not counted in images/s."
    )
    return f"{markdown(pd.DataFrame(rows))}\n\n{told}"
