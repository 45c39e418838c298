"""Text that somebody else wrote, put into Markdown: it reads as it stands, and makes nothing of the page."""

from __future__ import annotations

import re
from typing import Any

from markupsafe import Markup

from lab.console import printable

# What marks anything within a line, on GitHub, too. An underscore within a word marks nothing.
_MARKS = re.compile(r"[\\`*\[\]|~$]|(?<!\w)_|_(?!\w)")
# A tag, an entity, and what a page makes a link of by itself.
_ENTITIES = {r"&(?=#?\w+;)": "&amp;", r"<(?=[\w/!?])": "&lt;", "://": "&#58;//", r"\bwww\.": "www&#46;"}


def escaped(value: Any) -> str:
    """The text of a value, on one line; what is Markdown already (``Markup``) stays as it is."""
    if isinstance(value, Markup):
        return value
    text = printable(str(value))
    for pattern, entity in _ENTITIES.items():
        text = re.sub(pattern, entity, text)
    return _MARKS.sub(r"\\\g<0>", text)


def code(value: Any) -> Markup:
    """The text of a value as code, between more backticks than it has in a row."""
    text = printable(str(value))
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    space = " " if "`" in text else ""
    return Markup(f"{fence}{space}{text}{space}{fence}")
