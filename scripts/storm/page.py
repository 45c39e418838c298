"""The page of a storm: counts, and every failure with the command that repeats it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.runs.files import write_text
from scripts.reproduce.common import origin
from scripts.storm.case import Outcome, Storm


def page(storms: Mapping[str, Storm], ran: Mapping[str, Sequence[Outcome] | str], seed: int, command: str) -> str:
    """Returns the page.

    Args:
        storms: by name.
        ran: by name: how its cases ended, or why it was not run.
        seed: of all that was drawn.
        command: that was typed.
    """
    lines = ["# The storm", "", f"Seed {seed}. {origin(command)}", ""]
    lines += ["| storm | cases | held | failed | minutes | what has to hold |", "|---|---|---|---|---|---|"]
    for name, ends in ran.items():
        if isinstance(ends, str):
            lines.append(f"| {name} | not run: {ends} | | | | {storms[name].HELD} |")
            continue
        failed = sum(end.problem is not None for end in ends)
        minutes = sum(end.seconds for end in ends) / 60
        lines.append(
            f"| {name} | {len(ends)} | {len(ends) - failed} | {failed} | {minutes:.1f} | {storms[name].HELD} |"
        )
    lines += ["", "Minutes are those of the cases, which run side by side.", ""]
    for name, ends in ran.items():
        if not isinstance(ends, str) and ends:
            kinds = Counter(end.case.kind for end in ends)
            held = Counter(end.case.kind for end in ends if end.problem is None)
            lines.append(f"- {name}: {', '.join(f'{kind} {held[kind]} of {kinds[kind]}' for kind in sorted(kinds))}")
    failures = [(name, end) for name, ends in ran.items() if not isinstance(ends, str) for end in ends if end.problem]
    lines += ["", "## Failures", ""] if failures else ["", "No case failed."]
    for name, end in failures:
        # Of a table so many lines are drawn: which of them has a number depends on how many.
        count = len(ran[name])
        repeat = f"python -m scripts.storm --seed {seed} --{name} {count} --only {name} --number {end.number}"
        told = " ".join(str(end.problem).replace("|", "/").replace("`", "'").split())
        lines.append(f"- `{repeat}`: {end.case.what}: {told[:500]}")
    return "\n".join(lines) + "\n"


def write_page(out: Path, text: str) -> Path:
    """Writes the page into a folder; its path."""
    path = out / "README.md"
    write_text(path, text)
    return path
