"""Bad command lines, and every option of ``configs/`` with values of all kinds: one sentence each, and nothing left."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

from scripts.storm.bad_lines import BAD_LINES, BadLine

# Words of the libraries, which say nothing to who has typed a command.
JARGON = re.compile(
    "Traceback|full_key|object_type|HydraException|LexerNoViableAlt|no viable alternative|mismatched input|"
    "ValidationError|Error executing job|InstantiationException"
)
# Characters of a sentence.
LONGEST = 350
MAINS = {"lab.bench": "lab.bench.__main__", "lab.report": "lab.report.__main__"}


def problem_of(line: BadLine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str | None:
    """What is wrong with the answer to a line; None if it is one sentence that names what it must."""
    monkeypatch.setattr(sys, "argv", [line.module, *line.arguments])
    main = importlib.import_module(MAINS.get(line.module, line.module)).main
    try:
        main()
        status: object = 0
    except SystemExit as ended:
        status = ended.code
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    said = capsys.readouterr().err
    if status not in (1, 2) or not said.startswith("error: ") or said.count("\n") != 1:
        return f"exit status {status}: {said}"
    if line.named not in said or JARGON.search(said) or len(said) > LONGEST:
        return f"{len(said)} characters, to name {line.named!r}: {said}"
    return None


def test_the_table_covers_every_command() -> None:
    assert len(set(BAD_LINES)) == len(BAD_LINES) >= 200
    assert {line.module for line in BAD_LINES} == {
        f"lab.{name}" for name in ("train", "inspect", "report", "status", "bench")
    }


@pytest.mark.parametrize("module", dict.fromkeys(line.module for line in BAD_LINES))
def test_every_bad_line_is_refused_in_one_sentence_and_leaves_nothing(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = {}
    for line in BAD_LINES:
        if line.module == module and (problem := problem_of(line, monkeypatch, capsys)):
            wrong[" ".join(line.arguments)] = problem
        assert not list(tmp_path.iterdir()), line
    assert not wrong, "\n".join(f"{line}: {problem}" for line, problem in wrong.items())
