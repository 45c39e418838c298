"""Bad command lines: each is answered in one sentence that names what is wrong, and leaves nothing behind."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from scripts.process import Process, finding
from scripts.storm.bad_lines import BAD_LINES, BadLine
from scripts.storm.case import Case, Storm
from scripts.storm.command import ROOT, problem_with, said_by
from scripts.storm.grounds import Grounds

_LONGEST = 400
# Internal words of other libraries, which mean nothing to a user.
_JARGON = ("full_key", "object_type", "HydraException", "no viable alternative", "ValidationError", "HYDRA_FULL_ERROR")


def _case(_: Grounds, number: int) -> Case:
    line = BAD_LINES[number]
    return Case(line.module, f"{line.module} {' '.join(line.arguments)}", partial(_carry_out, line))


STORM = Storm(
    count=len(BAD_LINES),
    held="one sentence of at most 400 characters that names what is wrong, exit status 1 or 2, and no file is written",
    draw=_case,
    table="lines",
)


def _carry_out(line: BadLine, folder: Path) -> str | None:
    said = said_by(Process("-m", line.module, *line.arguments, folder=folder, environment=finding(ROOT)))
    if problem := problem_with(said, refusals=(1, 2)):
        return problem
    if not said.status:
        return f"it is taken: {said.last_line}"
    sentence = next(one for one in said.err.splitlines() if "error: " in one)
    if len(sentence) > _LONGEST:
        return f"the sentence has {len(sentence)} characters: {sentence}"
    if line.named not in sentence:
        return f"the sentence does not name {line.named!r}: {sentence}"
    if jargon := [word for word in _JARGON if word in said.err]:
        return f"it says {', '.join(jargon)}: {said.last_line}"
    left = sorted(one.relative_to(folder).as_posix() for one in folder.rglob("*"))
    return f"it leaves {', '.join(left[:4])}" if left else None
