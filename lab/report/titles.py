"""Titles of settings in the figures of a report: short enough for a panel, and each of its own."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Sequence

from lab.plotting.figures import literal
from lab.report.settings import Setting

# A number of many digits, as a search draws it.
_LONG_NUMBER = re.compile(r"(?<==)-?\d*\.\d{5,}(e[+-]?\d+)?$")
# Letters of a line in which a word has to be broken.
_BROKEN = 26
# Most lines of a title or label.
_LINES = 3


def titles_of(settings: Sequence[Setting]) -> dict[Setting, str]:
    """Title of each setting of an experiment, in all its figures: two settings never share one."""
    return dict(zip(settings, told_apart([setting.name for setting in settings]), strict=True))


def told_apart(names: Sequence[str], width: int = 34) -> list[str]:
    """Names of settings for titles of ``width`` letters; if one is too long, all lose options that tell none apart.

    An option is left out if all names of a softmax that have any option have it, no name has it with another value, and
    the names still differ without it. Numbers are told to four digits where no two become the same. The names are those
    of all settings: of a part of them, they would tell less.
    """
    if all(len(textwrap.wrap(name, width)) < _LINES for name in names):
        return list(names)
    whole = [name.split(", ") for name in names]
    short = {part: _LONG_NUMBER.sub(lambda found: f"{float(found[0]):.4g}", part) for own in whole for part in own}
    once = Counter(short.values())
    parts = [[short[part] if once[short[part]] == 1 else part for part in own] for own in whole]
    often = Counter(part for own in parts for part in own[1:])
    values = Counter(part.split("=")[0] for part in often)
    for option, times_named in often.most_common():
        heads = {own[0] for own in parts if option in own[1:]}
        everywhere = all(option in own for own in parts if own[0] in heads and own[1:])
        without = [[own[0], *(part for part in own[1:] if part != option)] for own in parts]
        alike = everywhere and values[option.split("=")[0]] == 1 and times_named > 1
        if alike and len(set(map(tuple, without))) == len(set(names)):
            parts = without
    return [", ".join(own) for own in parts]


def panel_title(text: str, width: int = 34) -> str:
    """A title in at most three lines, shortened in its middle; a dollar sign in it begins no formula."""
    # A line that is full to its last letter, as a broken word makes it, would reach into the next panel.
    broken = any(len(word) > width for word in text.split())
    lines = textwrap.wrap(text, min(width, _BROKEN) if broken else width)
    if len(lines) > _LINES:
        lines = [lines[0], f"… {lines[-2]}", lines[-1]]
    return "\n".join(map(literal, lines))
