"""Composes the config of overrides, and checks it against the signatures of what it names, before any work."""

from __future__ import annotations

import difflib
import inspect
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf
from pydantic import (
    ConfigDict,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    PydanticSchemaGenerationError,
    TypeAdapter,
    ValidationError,
)
from pydantic.errors import PydanticUndefinedAnnotation

from lab.config.identity import flatten
from lab.console import LabError

CONFIGS = Path(__file__).resolve().parent.parent / "configs"

# Keys that Hydra's instantiate reads itself.
_HYDRA = {"_target_", "_partial_", "_recursive_", "_convert_", "_args_"}
# What other programs call an option that has another name here; unlike a misspelt one, it does not look alike.
_ALSO_CALLED = {
    "learning_rate": "lr",
    "epochs": "max_epochs",
    "steps": "max_steps",
    "wd": "weight_decay",
    "gpus": "devices",
}


# Values that are no arguments of a class, and what they may be.
_PLAIN: dict[str, Any] = {
    "seed": int,
    "force": bool,
    "compile": bool,
    "threads": PositiveInt | None,
    "checkpoints.every_minutes": PositiveFloat,
    "checkpoints.every_n_steps": PositiveInt | None,
    "checkpoints.keep": PositiveInt,
    "checkpoints.best": str | None,
    "diagnostics.every_n_epochs": NonNegativeInt,
    "diagnostics.pictures_every_n_epochs": NonNegativeInt,
}


@contextmanager
def initialized(config_dir: Path | None = None) -> Iterator[None]:
    """Within, Hydra composes from ``configs/`` and, as under ``--config-dir``, from a folder of one's own beside it.

    Raises:
        LabError: if there is no such folder.
    """
    if config_dir is not None and not config_dir.is_dir():
        raise LabError(f"--config-dir {config_dir} is no folder: name the one that holds softmax/, model/ or the like")
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        if config_dir is not None:
            loader: Any = GlobalHydra.instance().config_loader()
            # Where Hydra's own command line puts it.
            path, before = f"file://{config_dir.absolute()}", SearchPathQuery(provider="schema")
            loader.config_search_path.prepend("command-line", path, before)
            loader.repository.initialize_sources(loader.config_search_path)
        yield


def compose_config(overrides: Sequence[str]) -> DictConfig:
    """The config that ``python -m lab.train`` composes of these overrides; ``paths.run`` is still to be set.

    Raises:
        HydraException: if they do not compose; ``lab.config.overrides.problem_with`` says why in one sentence.
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
    flat = flatten(plain)
    for path, hint in _PLAIN.items():
        if path in flat:
            _check_type(flat[path], hint, path)


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
    if path == "softmax":
        _check_rule(target)
    try:
        parameters = inspect.signature(target).parameters
        hints = typing.get_type_hints(target.__init__ if inspect.isclass(target) else target, include_extras=True)
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


def _check_rule(target: Any) -> None:
    """Checks the constructor first: where no layer can call it, a wrong option is the lesser half of the truth."""
    from lab.attention.contract import check_constructor  # with torch, which most who compose a config do not need

    try:
        check_constructor(target)
    except ValueError as error:
        raise LabError(str(error)) from error


def _check_type(value: Any, hint: Any, path: str) -> None:
    try:
        found = TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True)).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        raise LabError(f"{path}={value!r} is wrong: {first['msg'].lower()}") from error
    except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation, TypeError):
        # No plain type (a protocol, a callable): the constructor itself judges it.
        return
    if isinstance(value, str) and isinstance(found, bool):
        # To YAML 1.2 "no" and "off" are words, and Python takes any word for true.
        raise LabError(f"{path}={value} is wrong: write true or false")


def _holds_target(value: Any) -> bool:
    if isinstance(value, Mapping):
        return "_target_" in value or any(map(_holds_target, value.values()))
    return isinstance(value, list) and any(map(_holds_target, value))


def choices(name: str, valid: Sequence[str]) -> str:
    """The valid names, and the one that was probably meant by ``name``."""
    other = _ALSO_CALLED.get(name)
    return _told(other if other in valid else next(iter(difflib.get_close_matches(name, valid, n=1)), None), valid)


def _told(meant: str | None, valid: Sequence[str]) -> str:
    hint = f"did you mean {meant!r}? " if meant else ""
    return f"{hint}valid: {', '.join(sorted(valid))}"


def explain_key(config: DictConfig, key: str) -> str:
    """The valid choices at the deepest part of a dotted ``key`` that ``config`` has, and the key probably meant."""
    node: Any = config
    parts = key.split(".")
    for depth, part in enumerate(parts):
        if not isinstance(node, DictConfig) or part not in node:
            where = ".".join(parts[:depth]) or "the config"
            valid = [str(k) for k in node if k not in _HYDRA] if isinstance(node, DictConfig) else []
            # An option that has just this name says more than a neighbour whose name looks alike.
            elsewhere = _elsewhere(config, key)
            return f"{where} has no {part!r}; {_told(elsewhere, valid) if elsewhere else choices(part, valid)}"
        node = node[part]
    return f"{key} exists"


def _elsewhere(config: DictConfig, key: str) -> str | None:
    """The option of another place whose name is the last part of ``key``; of several, the one most like it."""
    last = key.rsplit(".", 1)[-1]
    plain: Any = OmegaConf.to_container(config, resolve=False)
    options = [option for option in flatten(plain) if "." in option]
    for name in filter(None, (last, _ALSO_CALLED.get(last))):
        if found := [option for option in options if option.rsplit(".", 1)[1] == name]:
            return max(found, key=lambda option: difflib.SequenceMatcher(None, key, option).ratio())
    return None
