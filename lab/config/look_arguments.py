"""Reads the command line of ``lab.inspect``: what is looked at, with which diagnostics."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lab.config.overrides import one_value, quoted, read_override
from lab.console import MOST_THREADS, LabError


def look_arguments(arguments: Sequence[str]) -> dict[str, Any]:
    """Returns keyword arguments for ``inspect`` (with ``run``) or ``inspect_model`` (with ``model``), and ``threads``.

    Raises:
        LabError: if an option is wrong or missing, or belongs to the other function.
    """
    arguments = list(_with_config_dir(arguments))
    if (wrong := next((one for one in arguments if "=" not in one), None)) is not None:
        raise LabError(f"{wrong!r} is no option: give name=value, as in run=runs/reasoning/softmax/seed=0")
    names = {argument.partition("=")[0] for argument in arguments}
    if not {"run", "model"} & names or "diagnostics" not in names:
        raise LabError(
            "run= (or model=) and diagnostics= are needed: python -m lab.inspect run=<folder> "
            "diagnostics=[attention_maps]"
        )
    own, other = ("model", "run") if "model" in names else ("run", "model")
    options: dict[str, Any] = {}
    overrides: list[str] = []
    of_softmax: list[str] = []
    of_data: dict[str, Any] = {}
    given: set[str] = set()
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key in given:
            raise LabError(f"{argument} is the second {key}=: give it once")
        given.add(key)
        kind = "data" if key.startswith("data.") else key
        if key == "paths.data":
            raise LabError(
                f"{argument}: lab.inspect looks for data where the run's config.yaml says; if they lie elsewhere now, "
                "set the option that names them there, such as data.source.digits.root=FOLDER"
            )
        if kind in _OPTIONS[other]:
            raise LabError(f"{key}= can be given only with {other}=, not with {own}=: leave it out")
        if kind == "data":
            of_data[key] = one_value(argument)
        elif key in _OPTIONS["both"] or key in _OPTIONS[own]:
            options[key] = {**_OPTIONS["both"], **_OPTIONS[own]}[key](key, _unquoted(argument, value))
        elif key.startswith(("softmax.", "softmax/")):
            of_softmax.append(argument)
        else:
            name = argument.lstrip("+")
            plus = argument[: len(argument) - len(name)]
            overrides.append(argument if key == "hydra.searchpath" else f"{plus}callbacks.{name}")
    named = ",".join(options.pop("diagnostics"))
    options |= {"callbacks": [f"callbacks=[{named}]", *overrides], "softmax_options": of_softmax}
    return {**options, "data_options": of_data} if own == "run" else options


def _unquoted(argument: str, value: str) -> str:
    """The value without Hydra's quotes; one without quotes is taken literally: names of run folders hold , and =."""
    return str(read_override(argument).parsed()) if value[:1] in ("'", '"') else value


def _with_config_dir(arguments: Sequence[str]) -> Iterator[str]:
    """Yields the arguments, with ``--config-dir my`` (as in ``lab.train``) as the override that means the same."""
    left, flagged = iter(arguments), False
    for argument in left:
        flag, separator, value = argument.partition("=")
        if flag not in ("--config-dir", "-cd"):
            yield argument
            continue
        named = value if separator else next(left, "")
        if not named or not Path(named).is_dir():
            raise LabError(f"--config-dir {named} is no folder: name the one that holds callbacks/ or softmax/")
        if flagged:
            raise LabError(f"--config-dir {named} is the second one: give one folder")
        flagged = True
        yield f"hydra.searchpath=[{quoted(f'file://{Path(named).absolute()}')}]"


def _text(name: str, value: str) -> str:
    if not value:
        raise LabError(f"{name}= is empty: give it a value, or leave it out")
    return value


def _path(name: str, value: str) -> Path:
    return Path(os.path.expanduser(_text(name, value)))


def _flag(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise LabError(f"{name} must be true or false, got {value}")
    return value == "true"


def _number(name: str, value: str, least: int = 1, most: int = 2**31 - 1) -> int:
    if not (value.isascii() and value.isdigit() and least <= int(value) <= most):
        raise LabError(f"{name} must be a number from {least} to {most}, got {value}")
    return int(value)


def _checkpoint(name: str, value: str) -> int | str:
    if value == "best":
        return value
    if not (value.isascii() and value.isdigit()):
        raise LabError(f"{name} must be a number of steps, or best, got {value}")
    return int(value)


def _names(name: str, value: str) -> list[str]:
    return [one.strip() for one in value.strip("[]").split(",") if one.strip()]


def _diagnostics(name: str, value: str) -> list[str]:
    named = read_override(f"{name}={value}").parsed()
    listed = [named] if isinstance(named, str) else named
    if not listed or not isinstance(listed, list):
        raise LabError(
            f"{name}={value} names no diagnostics: give some, as in diagnostics=[attention_entropy,linear_probes]"
        )
    return [str(one) for one in listed]


# The function that reads each option; ``data`` stands for all options that begin with ``data.``.
_OPTIONS: Mapping[str, Mapping[str, Callable[[str, str], Any]]] = {
    "both": {
        "out": _path,
        "device": _text,
        "threads": partial(_number, most=MOST_THREADS),
        "softmax": _text,
        "force": _flag,
        "diagnostics": _diagnostics,
    },
    "run": {"run": _path, "checkpoint": _checkpoint, "trust": _names, "data": _text},
    "model": {
        "model": _text,
        "text": _text,
        "images": _path,
        "tokens": _number,
        "inputs": _number,
        "weights": _flag,
        "layers": _number,
        "kind": _text,
        "seed": partial(_number, least=0),
    },
}
