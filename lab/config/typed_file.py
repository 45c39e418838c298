"""Reads a YAML file as a dataclass: a wrong key, type or value in it is told in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, cast, get_args, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import TypeAdapter, ValidationError
from yaml import YAMLError

from lab.config.suggestions import choices
from lab.console import LabError, cause_of

Content = TypeVar("Content")


def read_typed(path: Path, kind: type[Content], **known: Any) -> Content:
    """Reads a file as a ``kind``; the file must not hold the ``known`` fields, which follow from where it lies.

    Args:
        path: of the file.
        kind: a dataclass, or a dict of dataclasses, with ``__pydantic_config__`` that forbids other keys.
        known: further fields.

    Raises:
        LabError: if the file cannot be read, or has other keys or types, or the dataclass refuses a value.
    """
    try:
        content = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (OSError, YAMLError, OmegaConfBaseException) as error:
        raise LabError(f"{path} cannot be read: {' '.join(str(error).split())}") from cause_of(error)
    if not isinstance(content, dict):
        raise LabError(f"{path} must hold keys and values")
    for key in known.keys() & content.keys():
        raise LabError(f"{path}: {key} follows from where the file lies: leave it out")
    try:
        return _adapter(cast(Any, kind)).validate_python({**content, **known})
    except ValidationError as error:
        # A misspelt key gives two errors, an unknown key and a missing one: the unknown key says more.
        first = min(error.errors(), key=lambda e: e["type"] != "unexpected_keyword_argument")
        *place, last = first["loc"] or ("",)
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "unexpected_keyword_argument":
            valid = [field.name for field in fields(_kind_at(kind, place)) if field.name not in known]
            raise LabError(f"{path}: {where} is not known; {choices(str(last), valid)}") from cause_of(error)
        message = first["msg"].removeprefix("Value error, ").replace("Field required", "is missing")
        raise LabError(f"{path}: {where + ': ' if where else ''}{message}") from cause_of(error)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _kind_at(kind: Any, place: Sequence[str | int]) -> Any:
    """The class of a place in a file: of a table, rows.3.cells.accuracy is a Cell."""
    for part in place:
        # Of a dict the values; of a tuple the entries.
        inner = get_type_hints(kind)[str(part)] if is_dataclass(kind) else get_args(kind)[isinstance(part, str)]
        kind = next((one for one in get_args(inner) if NoneType in get_args(inner) and one is not NoneType), inner)
    return kind
