"""Composes the config of overrides, and checks it against the signatures of what it names, before any work."""

from __future__ import annotations

import difflib
import inspect
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf
from pydantic import ConfigDict, PydanticSchemaGenerationError, TypeAdapter, ValidationError
from pydantic.errors import PydanticUndefinedAnnotation

from lab.errors import LabError

CONFIGS = Path(__file__).resolve().parent.parent / "configs"

# Keys that Hydra's instantiate reads itself.
_HYDRA = {"_target_", "_partial_", "_recursive_", "_convert_", "_args_"}


def compose_config(overrides: Sequence[str]) -> DictConfig:
    """The config that ``python -m lab.train`` composes of these overrides; ``paths.run`` is still to be set.

    Raises:
        HydraException: if they do not compose; ``lab.command.problem_with`` says why in one sentence.
    """
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose("train", overrides=list(overrides))


def check(config: DictConfig) -> None:
    """Raises LabError at the first name or type in ``config`` that its ``_target_`` does not take.

    Every node with a ``_target_`` is compared with the signature of the class or function it names, so that
    a user's own softmax or task is checked as the lab's are, with nothing to register.
    """
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    # Written inside softmax, where a person looks for it, but no argument of the rule.
    if isinstance(softmax := plain.get("softmax"), dict):
        plain["softmax.schedule"] = softmax.pop("schedule", None)
    _check_node(plain, "")


def _check_node(node: Any, path: str) -> None:
    if isinstance(node, list):
        for index, item in enumerate(node):
            _check_node(item, f"{path}[{index}]")
    if not isinstance(node, Mapping):
        return
    if "_target_" in node:
        _check_call(node, path)
    for key, value in node.items():
        _check_node(value, f"{path}.{key}" if path else str(key))


def _check_call(node: Mapping[str, Any], path: str) -> None:
    try:
        target = get_object(node["_target_"])
    except Exception as error:
        raise LabError(f"{path}._target_={node['_target_']} cannot be imported: {error}") from error
    try:
        parameters = inspect.signature(target).parameters
        hints = typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)
    except (TypeError, ValueError, NameError):
        return
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    for key, value in node.items():
        if key in _HYDRA or (takes_any and key not in parameters):
            continue
        if key not in parameters:
            raise LabError(f"{path}.{key} is not an option of {node['_target_']}; {choices(key, list(parameters))}")
        if key in hints and not _holds_target(value):
            _check_type(value, hints[key], f"{path}.{key}")


def _check_type(value: Any, hint: Any, path: str) -> None:
    try:
        TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True)).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        raise LabError(f"{path}={value!r} is wrong: {first['msg'].lower()}") from error
    except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation, TypeError):
        # No plain type (a protocol, a callable): the constructor itself judges it.
        return


def _holds_target(value: Any) -> bool:
    if isinstance(value, Mapping):
        return "_target_" in value or any(map(_holds_target, value.values()))
    return isinstance(value, list) and any(map(_holds_target, value))


def choices(name: str, valid: Sequence[str]) -> str:
    """The valid names, and the one that was probably meant by ``name``."""
    close = difflib.get_close_matches(name, valid, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}valid: {', '.join(sorted(valid))}"


def explain_key(config: DictConfig, key: str) -> str:
    """The valid choices at the deepest part of a dotted ``key`` that ``config`` has."""
    node: Any = config
    parts = key.split(".")
    for depth, part in enumerate(parts):
        if not isinstance(node, DictConfig) or part not in node:
            where = ".".join(parts[:depth]) or "the config"
            valid = [str(k) for k in node] if isinstance(node, DictConfig) else []
            return f"{where} has no {part!r}; {choices(part, valid)}"
        node = node[part]
    return f"{key} exists"
