"""Speed and memory of the lab: `python -m lab.bench` measures, prints a table and saves it.

Every measurement runs in a process of its own. `--quick` gives a rough picture in a few minutes; the whole takes
three quarters of an hour on two CPU cores. Ctrl-C or `kill` ends it with the table of what it has measured so far.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import torch
from rich.console import Console

from lab.bench.arguments import choose_precisions, parse
from lab.bench.cases import PRECISIONS, Case, Row, cases
from lab.bench.report import number, other_work, save, set_aside, show
from lab.bench.timing import matrix_product_gflops
from lab.bench.worker import measure_apart
from lab.console import import_from_here, tables
from lab.runs import provenance
from lab.signals import handling
from lab.terminal import outlive_readers


def run(plan: Sequence[Case], console: Console) -> tuple[list[Row], bool]:
    """Measures the cases one after the other; returns their rows, and False if Ctrl-C (SIGINT) or SIGTERM ended it."""
    rows: list[Row] = []
    # In the background (`nohup ... &`) a process ignores SIGINT, so `kill` has to end it as Ctrl-C would.
    with handling(signal.default_int_handler, signal.SIGTERM):
        try:
            for place, case in enumerate(plan, start=1):
                new = measure_apart(case)
                rows += new
                told = ", ".join(row.error or f"{number(row.median or 0.0)} {row.unit}" for row in new)
                console.print(f"{place}/{len(plan)} {case}: {told}", markup=False, highlight=False)
        except KeyboardInterrupt:
            console.print("Interrupted: what was measured so far is kept.")
            return rows, False
    return rows, True


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns 1 if a case gave no number or the benchmark was interrupted, else 0."""
    outlive_readers()  # what was measured is saved though Ctrl-C of `| tee` has ended tee, too
    import_from_here()
    options = parse(arguments, __doc__)
    console = tables()
    torch.set_num_threads(options.threads)
    # Other work on the machine makes every number worse, so the table tells the load before the benchmark's own begins.
    load = round(os.getloadavg()[0], 1)
    gflops = {name: matrix_product_gflops(getattr(torch, name), options.device) for name in PRECISIONS}
    precisions, left_out = choose_precisions(options.precision, gflops, options.quick)
    facts: dict[str, Any] = {
        **provenance.provenance(),
        "device": options.device,
        "threads": options.threads,
        "seconds_per_measurement": options.seconds_per_measurement,
        "gflops": gflops,
        "left_out": left_out,
        "load": load,
        "quick": options.quick,
    }
    if crowded := other_work(facts):
        console.print(crowded, markup=False, highlight=False)
    plan = list(
        cases(
            options.only,
            options.device,
            options.threads,
            options.seconds_per_measurement,
            options.batch_size,
            options.quick,
            precisions,
            options.softmax,
        )
    )
    rows, complete = run(plan, console)
    facts["complete"] = complete
    show(rows, facts, console)
    if not complete:
        options.out = options.out.with_name(f"{options.out.name}_incomplete")
    if aside := set_aside(options.out):
        console.print(f"The earlier table is kept as {aside}.*", markup=False, highlight=False, soft_wrap=True)
    paths = save(options.out, rows, facts)
    console.print(f"Saved {', '.join(map(str, paths))}", markup=False, highlight=False, soft_wrap=True)
    return 0 if complete and not any(row.error for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
