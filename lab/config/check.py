"""Checks a composed config, before any work, against the signatures of the classes and functions it names.

A constructor's annotations say what its options may be; no other place in the lab repeats this:

    class VisionData:
        def __init__(self, batch_size: PositiveInt = 512, prior: Annotated[float, Field(ge=0, le=1)] | None = None)

A constructor that is called from Python does not check ranges by itself; :func:`check_arguments` does that.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from types import SimpleNamespace
from typing import Annotated, Any

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, TypeAdapter

from lab.config.suggestions import HYDRA_KEYS, choices
from lab.config.values import adapter_of, check_value
from lab.console import MOST_THREADS, LabError, cause_of, first_line, unexpected, users_line_of

# Seeds that Lightning and numpy accept for their random generators.
_Seed = Annotated[int, Field(ge=0, lt=2**32)]

# Config values that are not arguments of a class, with their allowed types. Every run has all of them.
PLAIN_VALUES: dict[str, Any] = {
    "seed": _Seed,
    "seeds": Annotated[int, Field(gt=0, le=1000)] | Annotated[list[_Seed], Field(min_length=1)] | None,
    "force": bool,
    "compile": bool,
    "threads": Annotated[int, Field(gt=0, le=MOST_THREADS)] | None,
    "trial": dict[str, Any] | None,
    "paths.data": str,
    "paths.runs": Annotated[str, Field(min_length=1)],
    "paths.run": str | None,
    "checkpoints.every_minutes": PositiveFloat,
    "checkpoints.every_n_steps": PositiveInt | None,
    "checkpoints.keep": PositiveInt,
    "checkpoints.best": str | None,
    "diagnostics.every_n_epochs": PositiveInt,
    "diagnostics.pictures_every_n_epochs": NonNegativeInt,
    **{f"{group}._target_": str for group in ("data", "model", "softmax", "optim", "trainer")},
    **{group: dict[str, Any] for group in ("callbacks", "logger", "intervention")},
}
# Options of the trainer that the lab reads, too, and that every run must therefore have.
_OF_TRAINER = ("accelerator", "devices", "num_nodes", "precision", "max_epochs", "accumulate_grad_batches")

# Precisions of 16 bit that only a GPU has.
HALF = ("16", "16-mixed")

# Options of NormSoftmax that an experiment may give defaults for (configs/softmax/norm_softmax.yaml).
_NORM_SOFTMAX = ("statistic", "tau")


def check(config: DictConfig) -> None:
    """Raises LabError at the first name or value in ``config`` that its ``_target_`` does not take.

    Every node with a ``_target_`` is compared with the signature of the class or function it names, so that
    a user's own softmax or task is checked as the lab's are, with nothing to register.
    """
    plain = _resolved(config)
    for path in PLAIN_VALUES:
        with suppress(KeyError):
            check_plain(path, _at(plain, path))
    for key in plain.get("norm_softmax") or {}:
        if key not in _NORM_SOFTMAX:
            raise LabError(f"norm_softmax.{key} is no default of NormSoftmax; {choices(str(key), _NORM_SOFTMAX)}")
    # Both are written inside softmax, where a person looks for them, but are not arguments of the rule.
    if isinstance(softmax := plain.get("softmax"), dict):
        for name in ("schedule", "normaliser"):
            plain[f"softmax.{name}"] = softmax.pop(name, None)
    for path, node in _made(plain):
        if path.endswith("._target_"):
            group = path.removesuffix("._target_")
            raise LabError(f"{path}={node} needs a name above it in its config, as the keys of {group}= are names")
        group, _, part = path.partition(".")
        if group == "softmax" and isinstance(node, Mapping) and "_target_" not in node and part in node:
            raise LabError(f"{path} has a {part} within it: '# @package softmax' has to be the first line of its file")
        if node and not (isinstance(node, Mapping) and "_target_" in node):
            raise LabError(f"{path}={node!r} is wrong: it must be a config with a _target_, or null")
    _check_node(plain, "")


def _made(plain: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields, with its path, each part that must be a config with a ``_target_`` or null."""
    yield from ((path, plain.get(path)) for path in ("softmax.schedule", "softmax.normaliser", "intervention"))
    for group in ("callbacks", "logger"):
        yield from ((f"{group}.{name}", node) for name, node in (plain.get(group) or {}).items())


def check_complete(config: DictConfig) -> None:
    """Checks the values that every run has; loads none of the classes that the config names.

    Raises:
        LabError: at the first value that is missing or not allowed, or that would do nothing beside the others.
    """
    unresolved = OmegaConf.to_container(config, resolve=False)
    for path in (*PLAIN_VALUES, *(f"trainer.{name}" for name in _OF_TRAINER)):
        try:
            _at(unresolved, path)
        except KeyError as missing:
            raise LabError(
                f"{missing.args[0]} is missing, and every run needs it: let a config or an override give it"
            ) from missing
    plain = _resolved(config)
    for path in PLAIN_VALUES:
        check_plain(path, _at(plain, path))
    _check_trainer(plain["trainer"])


def no_half_on_a_cpu(precision: object) -> str:
    """The sentence that refuses a precision of :data:`HALF` where there is no GPU."""
    return f"trainer.precision={precision} is for GPUs: on a CPU take bf16-mixed or 32-true"


def _check_trainer(trainer: Mapping[str, Any]) -> None:
    """Raises LabError at an option of the trainer that would do nothing beside the others."""
    if trainer.get("gradient_clip_algorithm") and not trainer.get("gradient_clip_val"):
        raise LabError("trainer.gradient_clip_algorithm clips nothing by itself: give trainer.gradient_clip_val, too")
    if trainer["accelerator"] == "cpu" and str(trainer["precision"]) in HALF:
        raise LabError(no_half_on_a_cpu(trainer["precision"]))
    for what in ("epochs", "steps"):
        least, most = (trainer.get(f"{end}_{what}") for end in ("min", "max"))
        if isinstance(least, int) and isinstance(most, int) and 0 < most < least:
            raise LabError(f"trainer.min_{what}={least} is above trainer.max_{what}={most}, where training ends")


def check_plain(path: str, value: Any) -> None:
    """Checks a value that is not an argument of a class (:data:`PLAIN_VALUES`); values at other paths pass.

    Raises:
        LabError: if the value is not allowed.
    """
    if path in PLAIN_VALUES:
        check_value(_plain_adapter(path), value, path)


def _resolved(config: DictConfig) -> dict[str, Any]:
    """The config as plain values.

    Raises:
        LabError: if a value refers to one that does not exist, or still has to be given.
    """
    try:
        for path in PLAIN_VALUES:  # these first: other values refer to them
            OmegaConf.select(config, path, throw_on_missing=True)
        plain: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        why = first_line(error)
        raise LabError(
            f"{error.full_key} has no value: {why[0].lower()}{why[1:]}; give it one with {error.full_key}="
        ) from cause_of(error)
    return plain


def _at(plain: Any, path: str) -> Any:
    """The value at a dotted path.

    Raises:
        KeyError: with the part of the path that is missing.
    """
    parts = path.split(".")
    for depth, part in enumerate(parts, start=1):
        if not isinstance(plain, dict) or part not in plain:
            raise KeyError(".".join(parts[:depth]))
        plain = plain[part]
    return plain


def check_arguments(
    target: Callable[..., Any], options: Mapping[str, Any], where: str, given: Sequence[str] = ()
) -> None:
    """Checks options of a class or function against its signature, as a config's are checked.

    Args:
        target: the class or function.
        options: arguments by name; missing arguments are not reported.
        where: name of the place of the options in messages, ``data`` for ``data.batch_size``.
        given: arguments that are no options, since the lab gives them itself.

    Raises:
        LabError: at the first option that ``target`` does not have, or whose value its annotation does not allow.
    """
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):
        return
    valid = [name for name in parameters if name not in given]
    for name, value in options.items():
        if name in given or not takes(parameters, name):
            raise LabError(f"{where}.{name} is not an option of {target.__qualname__}; {choices(name, valid)}")
        if not _holds_target(value):
            check_value(_adapter(target, name), value, f"{where}.{name}")


def takes(parameters: Mapping[str, inspect.Parameter], name: str) -> bool:
    """Tells whether a signature takes an argument of this name, be it among its ``**options``."""
    return name in parameters or any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())


def _check_node(node: Any, path: str) -> None:
    if isinstance(node, list):
        for index, item in enumerate(node):
            _check_node(item, f"{path}[{index}]")
    if not isinstance(node, Mapping):
        return
    if "_target_" in node:
        # Hydra would log a failed import itself, too.
        logging.getLogger("hydra.utils").disabled = True
        try:
            target = get_object(node["_target_"])
        except (Exception, SystemExit) as error:
            target = str(node["_target_"])
            raise LabError(
                f"{path}._target_={target} cannot be imported: {_not_imported(target, error)}"
            ) from cause_of(error)
        finally:
            logging.getLogger("hydra.utils").disabled = False
        given: Sequence[str] = ()
        if path in ("softmax", "softmax.normaliser"):
            given = _check_rule(target)
            check_partial(path, node, target)
        options = {key: value for key, value in node.items() if key not in HYDRA_KEYS}
        check_arguments(target, options, path, given)
        # Partial targets and the model get further arguments when they are made, the model those that the data knows.
        if not node.get("_partial_") and path != "model":
            _check_required(target, options, path)
    for key, value in node.items():
        _check_node(value, f"{path}.{key}" if path else str(key))


def _not_imported(target: str, error: BaseException) -> str:
    """Says why Hydra cannot import a target: its module is not there, lacks the name, or fails by itself."""
    if isinstance(error, SystemExit):
        where = f" ({line})" if (line := users_line_of(error)) else ""
        return f"its module ends Python{where}: put what a script does below if __name__ == '__main__':"
    cause = error.__cause__
    if cause is None:
        return " ".join(str(error).split())
    if not (isinstance(cause, ModuleNotFoundError) and f"{target}.".startswith(f"{cause.name}.")):
        return unexpected(cause)
    where, _, name = target.rpartition(".")
    if where not in sys.modules:
        return f"there is no module {cause.name}; yours is found by PYTHONPATH=<its folder>"
    own = [one for one, value in vars(sys.modules[where]).items() if getattr(value, "__module__", None) == where]
    return f"{where} has no {name!r}" + (f"; {choices(name, own)}" if own else "")


def _check_required(target: Callable[..., Any], options: Mapping[str, Any], where: str) -> None:
    with suppress(TypeError, ValueError):
        for name, one in inspect.signature(target).parameters.items():
            needed = one.default is one.empty and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
            if needed and name not in options:
                raise LabError(f"{where}.{name} is missing: {target.__qualname__} needs it")


def check_partial(where: str, part: Mapping[str, Any], target: object) -> None:
    """Checks that the class of a rule or normaliser is left for the model to make.

    Raises:
        LabError: if the config would make it at once.
    """
    if inspect.isclass(target) and not part.get("_partial_"):
        raise LabError(
            f"{where}: the config of {part['_target_']} needs the line _partial_: true, since the model makes one "
            "for every layer, with the number of heads of that layer"
        )


def _check_rule(target: Any) -> Sequence[str]:
    """Checks first that a layer can call the constructor: if not, a wrong option would be the smaller problem.

    Returns the arguments that the layer gives.
    """
    # Here, since they load torch, which composing a config seldom needs.
    from lab.attention.contract import check_constructor
    from lab.attention.rule import OF_A_LAYER

    try:
        check_constructor(target)
    except ValueError as error:
        raise LabError(str(error)) from error
    return OF_A_LAYER


def _holds_target(value: Any) -> bool:
    if isinstance(value, Mapping):
        return "_target_" in value or any(map(_holds_target, value.values()))
    return isinstance(value, list) and any(map(_holds_target, value))


@cache
def _hints(target: Callable[..., Any]) -> dict[str, Any]:
    """Annotations of a constructor's or function's parameters; those that cannot be read are left out."""
    # Of a dataclass read the class, not __init__: an inherited field is annotated with names of its own module.
    own = target.__init__ if inspect.isclass(target) and not dataclasses.is_dataclass(target) else target
    known, found = getattr(own, "__globals__", None), {}
    try:
        found = typing.get_type_hints(own, include_extras=True)
    except (TypeError, NameError, AttributeError):
        # One by one: a name that its module imports for type checkers alone hides no other annotation.
        for name, annotation in getattr(own, "__annotations__", {}).items():
            with suppress(TypeError, NameError, AttributeError):
                one: Any = SimpleNamespace(__annotations__={name: annotation})
                found |= typing.get_type_hints(one, known, include_extras=True)
    # Lightning is not imported here, which takes seconds: while it is not loaded, the target cannot be its Trainer.
    lightning = sys.modules.get("lightning")
    if lightning is not None and inspect.isclass(target) and issubclass(target, lightning.Trainer):
        from lab.config.trainer_options import OPTIONS

        return found | OPTIONS
    return found


@cache
def _adapter(target: Callable[..., Any], name: str) -> TypeAdapter[Any] | None:
    return adapter_of(_hints(target).get(name, Any))


@cache
def _plain_adapter(path: str) -> TypeAdapter[Any] | None:
    return adapter_of(PLAIN_VALUES[path])
