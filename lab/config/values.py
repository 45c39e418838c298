"""Checks one value against a type annotation, and says in words what it must be."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from textwrap import shorten
from typing import Any

from pydantic import ConfigDict, PydanticSchemaGenerationError, TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUndefinedAnnotation
from pydantic_core import ErrorDetails, SchemaError

from lab.config.suggestions import LONGEST_LIST
from lab.console import LabError, cause_of

# A constructor is given values as typed, without conversion: "3" is not a number, true is not 1, and 2.0 is not a whole
# number; infinity and nan are allowed only under Field(allow_inf_nan=True).
_AS_TYPED = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)

# Pydantic's name of an error -> what the value must be. Other errors are told in pydantic's words.
_MUST = {
    "int_type": "be a whole number",
    "int_from_float": "be a whole number",
    "float_type": "be a number",
    "finite_number": "be a finite number",
    "bool_type": "be true or false",
    "string_type": "be text",
    "list_type": "be a list",
    "tuple_type": "be a list",
    "dict_type": "be a mapping",
    "none_required": "be null",
    "needs_python_object": "be a config with a _target_",
    "too_short": "have {min_length} entries or more",
    "too_long": "have {max_length} entries or fewer",
    "string_too_short": "not be empty",
}
# Pydantic's name of an error -> the exceeded limit's name in JSON schema, and its name in the error's context.
_LIMITS = {
    "greater_than": ("exclusiveMinimum", "gt"),
    "greater_than_equal": ("minimum", "ge"),
    "less_than": ("exclusiveMaximum", "lt"),
    "less_than_equal": ("maximum", "le"),
}
_LIMIT_WORDS = {
    "exclusiveMinimum": "greater than",
    "minimum": "at least",
    "exclusiveMaximum": "less than",
    "maximum": "at most",
}


def adapter_of(hint: Any) -> TypeAdapter[Any] | None:
    """Pydantic's adapter for an annotation; None where pydantic cannot handle it, such as a protocol."""
    try:
        return TypeAdapter(hint, config=_AS_TYPED)
    except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation, SchemaError, TypeError):
        return None


def check_value(adapter: TypeAdapter[Any] | None, value: Any, path: str) -> None:
    """Checks a value at a dotted path; without an adapter it passes.

    Raises:
        LabError: if its annotation does not allow it.
    """
    if adapter is None:
        return
    try:
        # Checked as JSON, in which a list may stand for a tuple and text for a path.
        adapter.validate_json(json.dumps(value))
    except TypeError:
        return  # an object, made in Python
    except ValidationError as error:
        if isinstance(value, str) and re.search("[\ud800-\udfff]", value):  # as Python reads bytes that are no text
            raise LabError(
                f"{path}={value!r} is no text in UTF-8: give it another name, or set LC_ALL=C.UTF-8 if it has letters "
                "that are not ASCII"
            ) from cause_of(error)
        found = [(one, *_place(value, path, one["loc"])) for one in error.errors(include_url=False)]
        # Of a union, report the types that match furthest into the value.
        _, value, path = max(found, key=lambda one: len(one[2]))
        must = " or ".join(dict.fromkeys(_must(adapter, one) for one, _, place in found if place == path))
        shown = json.dumps(value) if value is None or isinstance(value, bool) else repr(value)
        raise LabError(f"{path}={shown} is wrong: it must {must}") from cause_of(error)


def _place(value: Any, path: str, location: Sequence[int | str]) -> tuple[Any, str]:
    """The part of a value that an error is about, and its path; skips the union types in pydantic's location."""
    for part in location:
        if isinstance(value, list | tuple) and isinstance(part, int) and part < len(value):
            value, path = value[part], f"{path}[{part}]"
        elif isinstance(value, Mapping) and part in value:
            value, path = value[part], f"{path}.{part}"
    return value, path


def _must(adapter: TypeAdapter[Any], error: ErrorDetails) -> str:
    """Words for what a value must be or have, to follow "it must"."""
    kind, context = error["type"], error.get("ctx", {})
    if kind in _LIMITS:
        return f"be {_range(adapter, *_LIMITS[kind], context)}"
    if kind == "literal_error":
        return f"be {shorten(context['expected'], LONGEST_LIST, placeholder=' ...')}"
    if kind in _MUST:
        return _MUST[kind].format_map(context)
    return re.sub(r"^(input|value) should ", "", error["msg"].lower())


def _range(adapter: TypeAdapter[Any], limit: str, name: str, context: Mapping[str, Any]) -> str:
    """Both ends of the range whose ``limit`` was exceeded, in words: "greater than 0 and less than 1"."""
    found: dict[str, Any] = {limit: context[name]}
    with suppress(PydanticInvalidForJsonSchema):
        found = next((node for node in _nodes(adapter.json_schema()) if node.get(limit) == context[name]), found)
    return " and ".join(f"{words} {_number(found[key])}" for key, words in _LIMIT_WORDS.items() if key in found)


def _number(limit: float) -> str:
    return str(int(limit)) if float(limit).is_integer() else f"{limit:g}"


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Every mapping within a JSON schema."""
    if isinstance(schema, dict):
        yield schema
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _nodes(part)
