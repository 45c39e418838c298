"""The page of a storm: counts, and every failure with the command that repeats it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.files import write_text
from scripts.reproduce.common import origin
from scripts.storm.case import Outcome, Storm
from scripts.storm.record import Record


def page(
    storms: Mapping[str, Storm],
    ran: Mapping[str, Sequence[Outcome] | str],
    record: Record,
    seed: int,
) -> str:
    """Returns the page.

    Args:
        storms: by name.
        ran: by name: how its cases ended, or why it was not run.
        record: every end of each case, also those before the last one.
        seed: of all that was drawn.
    """
    lines = ["# The storm", "", f"Seed {seed}. {origin()}", ""]
    lines += ["| storm | cases | held | failed | what has to hold |", "|---|---|---|---|---|"]
    for name, ends in ran.items():
        if isinstance(ends, str):
            lines.append(f"| {name} | not run: {ends} | | | {storms[name].held} |")
            continue
        failed = sum(end.problem is not None for end in ends)
        lines.append(f"| {name} | {len(ends)} | {len(ends) - failed} | {failed} | {storms[name].held} |")
    lines.append("")
    for name, ends in ran.items():
        if kinds := Counter(end.case.kind for end in ends_of(ends)):
            held = Counter(end.case.kind for end in ends_of(ends) if end.problem is None)
            lines.append(f"- {name}: {', '.join(f'{kind} {held[kind]} of {kinds[kind]}' for kind in sorted(kinds))}")
    failures = [(name, end) for name, ends in ran.items() for end in ends_of(ends) if end.problem]
    lines += ["", "## Failures", ""] if failures else ["", "No case failed."]
    for name, end in failures:
        # From a table so many lines are drawn: which line has a number depends on how many are drawn.
        count = len(ran[name])
        repeat = f"python -m scripts.storm --seed {seed} --{name} {count} --only {name} --number {end.number}"
        lines.append(f"- `{repeat}`: {end.case.what}: {_plain(end.problem)}")
    mended = [
        (line, end)
        for name, ends in ran.items()
        for end in ends_of(ends)
        if end.problem is None
        for line in record.of(name, end.number, end.case)
        if line.problem
    ]
    lines += ["", "## Failed before, and held when carried out again", ""] if mended else []
    for line, end in mended:
        lines.append(f"- {line.storm} {line.number}, at commit {line.commit}: {end.case.what}: {_plain(line.problem)}")
    ended = [record.of(name, end.number, end.case)[-1] for name, ends in ran.items() for end in ends_of(ends)]
    commits = Counter(line.commit for line in ended)
    lines += ["", f"Cases by the commit at which they last ended: {', '.join(f'{c} {n}' for c, n in commits.items())}."]
    return "\n".join(lines) + "\n"


def ends_of(ends: Sequence[Outcome] | str) -> Sequence[Outcome]:
    """Outcomes of a storm; none where it was not run."""
    return () if isinstance(ends, str) else ends


def _plain(problem: str | None) -> str:
    """A problem on one line of a page."""
    return " ".join(str(problem).replace("|", "/").replace("`", "'").split())[:500]


def write_page(out: Path, text: str) -> Path:
    """Writes the page into a folder and returns its path."""
    path = out / "README.md"
    write_text(path, text)
    return path
