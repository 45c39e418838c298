"""Every docstring begins with a noun or a verb: a reader of an index then sees what a thing is or does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from conftest import ROOT

FOLDERS = ("lab", "callbacks", "datasets", "hydra_plugins", "scripts")
# Words that begin a clause, and not a description.
CLAUSES = {"what", "where", "whether", "how", "who", "whose", "that", "which", "when", "why", "if"}


def docstrings(path: Path) -> Iterator[tuple[str, str]]:
    """(where, docstring) of a module, its classes and functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
            yield f"{path.relative_to(ROOT)}: {getattr(node, 'name', 'module')}", text


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    # Not through the links of lab: each file once.
    files = [path for name in FOLDERS for path in sorted((ROOT / name).rglob("*.py"))]
    found = [one for path in files for one in docstrings(path)]
    wrong = [f"{where}: {text.splitlines()[0]}" for where, text in found if text.split()[0].lower() in CLAUSES]
    assert len(found) > 500
    assert not wrong, "\n".join(wrong)
