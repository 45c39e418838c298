"""The benchmark's table: on the screen, as Markdown, CSV and JSON; and the targets that the lab has to reach."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lab.bench.cases import FIXED_SIZE, SOFTMAXES, Row, size_of
from lab.console import counted
from lab.files import csv_text, write_json, write_text
from lab.signals import undisturbed

TITLES = {
    "compose": "Composition of 56x56 scenes",
    "train": "Training steps of the compact ViT (forward, loss, backward, AdamW)",
    "ratio": "Step time of a softmax over plain softmax's, steps interleaved in one process",
    "attention": "Attention alone, 4 heads x 64",
    "replace": "Step time of models of other libraries, a softmax of the lab over their own attention (CPU time)",
    "seeds": "Full-batch training steps of the reasoner, seeds one by one and together",
    "diagnostics": "All diagnostics at their default cadence beside an epoch of 60,000 samples of the compact ViT",
    "gather": "Gathering runs of 300 epochs for a report, first and again with nothing new",
    "windows": "Step of local attention (forward, backward), FlexAttention over a mask to the fused kernel",
    "probes": "Linear probes of the 7-layer, 4-head ViT in one batched solve; forward passes not counted",
}
COLUMNS = ("quantity", "softmax", "path", "precision", "mode", "tokens", "batch")
NOTES = (
    "Numbers are medians over timed rounds, counted in the column rounds, after warm-up, with their quartiles in "
    'brackets; what was measured a single time says "once". Every case runs in a process of its own. Peak is the '
    "largest resident set of that process during the timed rounds (on a GPU: what torch had allocated), and growth is "
    "its part above the bare process. "
    "After torch.compile, both include the compiler. bfloat16 is autocast. On a CPU that multiplies bfloat16 numbers, "
    "the path called fused computes plain products in bfloat16 up to 256 keys. Heat treatment changes the tau of these "
    "rules only once an epoch, so its steps take as long as theirs. "
    "adaptive_temperature is measured with when=always."
)

# Softmaxes that the targets of a group are about, where it is not all that are measured by default.
TARGETED = {
    "ratio": ("norm_softmax",), "replace": ("softmax",), "seeds": ("norm_softmax",), "diagnostics": ("softmax",)
}  # fmt: skip
# Part of a core that other work may take before the table says so.
LITTLE = 0.5
# Endings of the files of one table.
SUFFIXES = (".json", ".csv", ".md")


@dataclass(frozen=True)
class Target:
    """A number that the lab has to reach; ``reached`` is None where the table does not hold the number."""

    group: str
    name: str
    wanted: str
    measured: str
    reached: bool | None


def targets(rows: Sequence[Row], device: str) -> list[Target]:
    """The project's speed targets, judged by the measured rows; they are set for two CPU cores, one only for a GPU."""

    def target(
        group: str,
        name: str,
        begin: str = "",
        precision: str = "",
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> Target:
        """Judges the largest median of a group's rows whose quantity starts with ``begin``, at its own batch size.

        For seeds, which have one batch size, the smallest: that of the quickest mode.
        """
        softmaxes = TARGETED.get(group, ("", *SOFTMAXES))
        found = [
            row.median
            for row in rows
            if row.group == group and row.quantity.startswith(begin) and row.median is not None
            if precision in ("", row.precision) and row.softmax in softmaxes
            if group in FIXED_SIZE or row.batch == size_of(group)
        ]
        wanted = f"at least {at_least:,.0f}" if at_least is not None else f"at most {at_most}"
        if not found:
            return Target(group, name, wanted, "", None)
        value = min(found) if group == "seeds" else max(found)
        reached = value >= at_least if at_least is not None else value <= (at_most or 0.0)
        return Target(group, name, wanted, number(value), reached)

    images = f"trained images/s, best setting, batch {size_of('train')}"
    ratio = f"NormSoftmax step / softmax step, worst setting, batch {size_of('ratio')}"
    share = "its linear layers / matrix product in %, {}, likewise"
    replaced = "fixed tau in a model of another library / its own attention, worst model"
    on_a_gpu = "5 steps together / one" if device == "cuda" else "a GPU's alone"  # which no row begins with
    return [
        target("compose", "composed samples/s", "composition", at_least=50_000),
        target("train", images, "training", at_least=55),
        target("train", share.format("float32"), "its", "float32", at_least=75),
        target("train", share.format("bfloat16"), "its", "bfloat16", at_least=60),
        target("ratio", ratio, at_most=1.10),
        target("seeds", "reasoning step of one seed in ms, NormSoftmax, best mode", "step of one seed", at_most=10),
        target("seeds", "reasoning step of 5 seeds together in ms, likewise", "step of 5 seeds together", at_most=30),
        target("seeds", "a run of 5 seeds / 5 runs one after another, likewise", "a run of 5 seeds", at_most=0.6),
        target("seeds", "on a GPU, a step of 5 seeds together / of one, likewise", on_a_gpu, at_most=1.3),
        target("replace", replaced, at_most=1.03),
        target("diagnostics", "all diagnostics / training", "all diagnostics", at_most=0.05),
        target("diagnostics", "no diagnostic due / training", "none due", at_most=0.01),
        target("probes", "seconds of 224 probed representations, 20,000 scenes", "224 ", at_most=180),
        target("probes", "seconds of 28 whole representations, 4,000 scenes", "whole ", at_most=600),
        target("probes", "SGD probes one by one / batched", "SGD ", at_least=10),
        target("gather", "seconds of gathering 1,000 runs, first", "first", at_most=10),
        target("gather", "seconds of gathering 1,000 runs, again", "again", at_most=1),
    ]


def _judged(rows: Sequence[Row], facts: dict[str, Any]) -> list[Target]:
    """The targets of the groups that were measured, judged by the rows; after ``--quick`` none is judged."""
    measured = {row.group for row in rows}
    return [one for one in targets([] if facts["quick"] else rows, facts["device"]) if one.group in measured]


def number(value: float) -> str:
    """Text of a number, with three figures or more and no exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    before = math.floor(math.log10(abs(value))) if value else 0
    return f"{value:.1f}" if before == 1 else f"{value:.{3 if before == 0 else 2 - before}f}"


def table_of(rows: Sequence[Row]) -> tuple[str, list[str], list[list[str]]]:
    """Title, head and cells of one group's table; values that all its rows share stand in the title alone."""
    varying = [name for name in COLUMNS if len({getattr(row, name) for row in rows}) > 1] or ["quantity"]
    shared = [name for name in COLUMNS if name not in varying and getattr(rows[0], name)]
    words = [
        f"{name} {getattr(rows[0], name)}" if name in ("tokens", "batch") else getattr(rows[0], name) for name in shared
    ]
    title = ", ".join([TITLES[rows[0].group], *words])
    head = [*varying, "median", "quartiles", "rounds", "unit", "peak MiB", "growth MiB"]
    return title, head, [[*(_cell(getattr(row, name)) for name in varying), *_numbers(row)] for row in rows]


def _cell(value: object) -> str:
    return str(value or "")


def _numbers(row: Row) -> list[str]:
    if row.median is None or row.lower_quartile is None or row.upper_quartile is None:
        return ["-", f"failed: {row.error}", "", "", "", ""]
    once = row.rounds < 2
    spread = "once" if once else f"[{number(row.lower_quartile)}, {number(row.upper_quartile)}]"
    memory = [number(mib) if mib is not None else "" for mib in (row.peak_mib, row.growth_mib)]
    return [number(row.median), spread, str(row.rounds), row.unit, *memory]


def show(rows: Sequence[Row], facts: dict[str, Any], console: Console) -> None:
    """Prints machine, tables, what their numbers are, and targets."""
    console.print(_headline(facts), markup=False, highlight=False)
    for members in _groups(rows):
        title, head, cells = table_of(members)
        table = Table(title=title, title_justify="left")
        for name in head:
            right = name in ("tokens", "batch", "median", "quartiles", "rounds", "peak MiB", "growth MiB")
            table.add_column(name, justify="right" if right else "left", overflow="fold")
        for line in cells:
            table.add_row(*(cell.replace("[", r"\[") for cell in line))
        console.print(table)
    console.print(NOTES, markup=False, highlight=False)
    for target in _judged(rows, facts):
        console.print(_sentence(target), markup=False, highlight=False)


def save(stem: Path, rows: Sequence[Row], facts: dict[str, Any]) -> list[Path]:
    """Writes ``stem``.json, .csv and .md, each atomically; returns their paths."""
    paths = [stem.with_name(stem.name + suffix) for suffix in SUFFIXES]
    judged = [asdict(target) for target in _judged(rows, facts)]
    write_json(paths[0], {**facts, "targets": judged, "rows": [asdict(row) for row in rows]})
    write_text(paths[1], csv_text([asdict(row) for row in rows], [field.name for field in fields(Row)]))
    write_text(paths[2], _markdown(rows, facts))
    return paths


def set_aside(stem: Path) -> Path | None:
    """Renames the files of an earlier table to ``<stem>~1`` (or the next free number); None where there are none."""
    files = [path for suffix in SUFFIXES if (path := stem.with_name(stem.name + suffix)).exists()]
    if not files:
        return None
    number = 1
    while any(stem.with_name(f"{stem.name}~{number}{suffix}").exists() for suffix in SUFFIXES):
        number += 1
    with undisturbed():  # half of it would leave one table under two names
        for path in files:
            path.rename(stem.with_name(f"{stem.name}~{number}{path.suffix}"))
    return stem.with_name(f"{stem.name}~{number}")


def _markdown(rows: Sequence[Row], facts: dict[str, Any]) -> str:
    lines = ["# Benchmark", "", *(f"- {fact}" for fact in _headline(facts).splitlines()), ""]
    lines += [*(f"- {_sentence(target)}" for target in _judged(rows, facts)), ""]
    for members in _groups(rows):
        title, head, cells = table_of(members)
        lines += [f"## {title}", ""]
        lines += [_line(head), _line(["---"] * len(head)), *map(_line, cells), ""]
    return "\n".join([*lines, NOTES, ""])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _sentence(target: Target) -> str:
    verdict = {True: "reached", False: "not reached", None: "cannot tell"}[target.reached]
    measured = "not measured" if target.reached is None else f"measured {target.measured}"
    return f"Target {verdict}: {target.name}: {target.wanted}; {measured}."


def other_work(facts: dict[str, Any]) -> str:
    """Says that other work takes the cores which the benchmark needs; "" where there are enough, and on a GPU."""
    load, threads, cores = facts["load"], facts["threads"], facts["machine"]["cores"]
    if facts["device"] != "cpu" or load + threads <= cores + LITTLE:
        return ""
    return (
        f"Other work takes the cores (load average {load}, {counted(threads, 'thread')}, {counted(cores, 'core')}): "
        "times may be far too long, and their quartiles close together all the same."
    )


def _headline(facts: dict[str, Any]) -> str:
    machine, versions, git = facts["machine"], facts["versions"], facts["git"]
    gpu = f", {machine['gpu']}" if facts["device"] == "cuda" else ""
    commit = f"{git['commit'][:12]}{' with changes' if git['modified'] else ''}" if git["commit"] else "none"
    products = ", ".join(f"{name} {number(value)}" for name, value in facts["gflops"].items())
    lines = [
        f"Command: {facts['command']}",
        f"Date: {facts['started']}; commit: {commit}",
        f"Machine: {machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB{gpu}, "
        f"{machine['system']}; load average {facts['load']} at the start",
        f"torch {versions['torch']}, timm {versions['timm']}, Python {versions['python']}; "
        f"device {facts['device']}, {counted(facts['threads'], 'thread')}",
        f"Matrix products, GFLOP/s: {products}",
    ]
    if crowded := other_work(facts):
        lines.append(crowded)
    if facts["left_out"]:
        lines.append(f"Left out: {facts['left_out']}")
    if not facts["complete"]:
        lines.append("Interrupted: the tables are not complete.")
    return "\n".join(lines)


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    return [mine for group in TITLES if (mine := [row for row in rows if row.group == group])]
