"""Shows a table of the runs below a folder, once or live: what each is doing, which runs of a sweep are missing.

python -m lab.status runs
python -m lab.status runs/main_task --watch 5
python -m lab.status runs --json                           # for a program
python -m lab.status --plan experiment=reasoning softmax=softmax,norm_softmax seed=0,1     # of a sweep, before it runs
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from rich.console import Group
from rich.live import Live
from rich.text import Text

from lab.config.arguments import Parser
from lab.console import LabError, refusals, tables
from lab.sweeps.status import Gathering, notes, plain, table


def _plan(words: list[str]) -> tuple[Path, list[Path]]:
    from hydra_plugins.eureka_lab import offer  # loads Hydra, which only --plan needs
    from lab.sweeps.record import planned_runs

    offer(words)
    return planned_runs(words)


@refusals()
def main() -> None:
    """Runs the command line."""
    parser = Parser(prog="python -m lab.status", description=__doc__)
    parser.add_argument("root", type=Path, nargs="?", help="a folder of runs; default: runs")
    parser.add_argument("--json", action="store_true", help="print the runs as JSON, once, for a program to read")
    parser.add_argument("--watch", type=float, metavar="SECONDS", help="show the table again every SECONDS seconds")
    parser.add_argument(
        "--plan",
        nargs=argparse.REMAINDER,
        metavar="OVERRIDE",
        help="must come last: the runs that python -m lab.train -m would make with these overrides, and which exist",
    )
    arguments = parser.parse_args()
    only = None
    if arguments.plan is not None:
        for flag in ("--watch", "--json"):
            if any(word.startswith(flag) for word in arguments.plan):
                parser.error(f"{flag} must come before --plan, which reads everything after it as overrides")
        if arguments.root is not None:
            parser.error(
                f"{arguments.root} cannot be given with --plan: name the folder of planned runs with paths.runs="
            )
        arguments.root, only = _plan(arguments.plan)
    elif arguments.root is None:
        arguments.root = Path("runs")
    if arguments.plan is None and not os.path.isdir(arguments.root):
        raise LabError(f"{arguments.root} is no folder: name one that holds runs, as in python -m lab.status runs")
    if arguments.watch is not None and not 0 < arguments.watch <= 86_400:
        parser.error(f"--watch takes a positive number of seconds, a day at most, got {arguments.watch:g}")
    if arguments.json and arguments.watch is not None:
        parser.error("--json prints the runs once: leave --watch out")
    gathering = Gathering(arguments.root, only)
    if arguments.json:
        print(json.dumps([plain(run, arguments.root) for run in gathering.look()], indent=2))
    elif arguments.watch is None:
        _show(gathering, arguments.root)
    else:
        with suppress(KeyboardInterrupt):
            _watch(gathering, arguments.root, arguments.watch)


def _show(gathering: Gathering, root: Path) -> None:
    runs = gathering.look()
    console = tables()
    console.print(table(runs, root))
    for note in notes(runs):
        console.print(note, soft_wrap=True, markup=False, highlight=False)


def _watch(gathering: Gathering, root: Path, seconds: float) -> None:
    console = tables()
    if not console.is_interactive:
        # In a file, a pipe or a dumb terminal one table follows the other.
        while True:
            _show(gathering, root)
            sys.stdout.flush()
            time.sleep(seconds)
    with Live(console=console, auto_refresh=False, screen=False) as live:
        while True:
            # Rows that do not fit would be cut off anyway, and laying out 1,000 runs takes seconds.
            fits = max(1, console.height - 8)
            runs = gathering.look()
            live.update(Group(table(runs, root, fits), *map(Text, notes(runs, fits))), refresh=True)
            time.sleep(seconds)


if __name__ == "__main__":
    main()
