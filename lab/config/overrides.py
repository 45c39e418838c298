"""The one place that reads an override, as Hydra's own parser does: ``softmax.tau=3``, ``+row=vit``, ``~optim``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeGuard

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser import types
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from lab.config.identity import NOT_WHAT
from lab.console import LabError, cause_of


@dataclass(frozen=True)
class Override:
    """One override of a command line.

    Attributes:
        text: as typed.
        key: the key that it sets, without + or ~ in front and without a package: ``softmax.tau``, ``data/task``.
        value: the value, as typed; "" where the override removes the key (``~optim``).
        written: the override in a form that does not depend on typing: ``optim.lr=0.001`` for ``optim.lr=1e-3``.
    """

    text: str
    key: str
    value: str
    written: str

    @property
    def name(self) -> str:
        """The override without a plus in front: ``row=vit`` for ``+row=vit``; ``~optim.period`` keeps its sign."""
        return self.written if self.text.startswith("~") else self.text.lstrip("+")

    @property
    def is_group(self) -> bool:
        """True if it may choose a config of a group; ``softmax.tau`` sets a value inside one."""
        return "." not in self.key

    @property
    def is_what(self) -> bool:
        """True if it says what is run, and not where or how loudly."""
        key = self.key.replace("/", ".")
        fetches = key.startswith("data.") and key.endswith(".download")
        return key.split(".", 1)[0] not in NOT_WHAT and not fetches

    def parsed(self) -> Any:
        """Returns the value as Hydra reads it: 3 for ``seed=3``."""
        return _parser().parse_override(self.text).value()


@lru_cache(maxsize=2**16)
def read_override(text: str) -> Override:
    """Reads one override.

    Raises:
        LabError: if it is not valid in Hydra's grammar.
    """
    (found,) = parsed([text])
    key, equals, value = text.partition("=")
    written = text
    if equals and not found.is_sweep_override():
        # As Hydra hands it to the runs of a sweep, except for False, which people type as false.
        as_hydra = found.get_value_element_as_str()
        written = f"{key}={as_hydra.lower() if isinstance(found.value(), bool) else as_hydra}"
        if found.is_delete() and found.value() is None:
            written = key  # Hydra hands ~key to the runs of a sweep as ~key=null
    return Override(text, found.key_or_group, value if equals else "", written)


def last_of_each(texts: Iterable[str]) -> dict[str, Override]:
    """Overrides by their key, in the order in which keys come first; of a key that comes twice the last one counts.

    Raises:
        LabError: if one is not valid in Hydra's grammar.
    """
    return {one.key: one for one in map(read_override, texts)}


def parsed(texts: Sequence[str], loader: ConfigLoader | None = None) -> list[types.Override]:
    """Parses overrides as Hydra does.

    Args:
        texts: as typed.
        loader: knows the existing configs, from which ``glob()`` chooses.

    Raises:
        LabError: if one is not valid in Hydra's grammar.
    """
    parser = OverridesParser.create(loader) if loader else _parser()
    found = []
    for text in texts:
        try:
            (one,) = parser.parse_overrides([text])
            if not one.key_or_group:
                raise ValueError
            found.append(one)
        except (HydraException, ValueError) as error:
            raise LabError(
                f"{text!r} cannot be read: write name=value, a list as name=[1,2], and other signs in "
                "quotes, as in \"name='my runs'\""
            ) from cause_of(error)
    return found


def values_of(params: Mapping[str, Any] | None) -> dict[str, Any]:
    """Values of ``hydra.sweeper.params`` as they would be typed: ``null`` where the file has none."""
    return {key: "null" if value is None else value for key, value in (params or {}).items()}


def quoted(value: str | Path) -> str:
    """A path as the value of an override: in quotes where Hydra's grammar would read it as something else."""
    text = str(value)
    if re.fullmatch(r"[\w./-]+", text, re.ASCII) and _parser().parse_override(f"key={text}").value() == text:
        return text
    return str(types.QuotedString(text, types.Quote.single).with_quotes())


def is_whole(value: object, least: float = -math.inf) -> TypeGuard[int]:
    """Tells whether an option is a whole number, and at least ``least``; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def one_value(text: str) -> Any:
    """Returns the value of an override that may not ask for several.

    Raises:
        LabError: if it asks for several, or cannot be read.
    """
    (found,) = parsed([text])
    if found.is_sweep_override():
        raise LabError(f"{text} gives several values, and one is needed: a list is name=[1,2]")
    return found.value()


@lru_cache(maxsize=1)
def _parser() -> OverridesParser:
    return OverridesParser.create()
