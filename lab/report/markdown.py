"""Escapes text that somebody else wrote for Markdown: it reads as written and cannot change the page."""

from __future__ import annotations

import re
from typing import Any

from markupsafe import Markup

from lab.console import printable

# Characters that format text within a line, on GitHub too. An underscore inside a word formats nothing.
_MARKS = re.compile(r"[\\`*\[\]|~$]|(?<!\w)_|_(?!\w)")
# HTML tags and entities, and text that a page turns into a link by itself.
_ENTITIES = {r"&(?=#?\w+;)": "&amp;", r"<(?=[\w/!?])": "&lt;", "://": "&#58;//", r"\bwww\.": "www&#46;"}


def escaped(value: Any) -> str:
    """The text of a value, on one line; a value that is Markdown already (``Markup``) stays as it is."""
    if isinstance(value, Markup):
        return value
    text = printable(str(value))
    for pattern, entity in _ENTITIES.items():
        text = re.sub(pattern, entity, text)
    return _MARKS.sub(r"\\\g<0>", text)


def code(value: Any) -> Markup:
    """The text of a value as inline code, between more backticks than it has in a row."""
    text = printable(str(value))
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    space = " " if "`" in text else ""
    return Markup(f"{fence}{space}{text}{space}{fence}")
