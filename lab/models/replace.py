"""Any transformer under any softmax: replaces the softmax of a Hugging Face, timm or other model, and restores it."""

from __future__ import annotations

import functools
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from typing import Any, TypeVar

import numpy as np
import torch
from hydra.utils import instantiate
from torch import Tensor, nn

from lab.attention.normaliser import check_causal
from lab.attention.schedule import HeatTreatment
from lab.console import LabError, cause_of, tell
from lab.models.composed_softmax import softmax_config, softmax_factory
from lab.models.multihead_attention import OfMultiheadAttention
from lab.models.observable import Observable
from lab.models.replaced_softmax import NAME, Heads, ReplacedSoftmax, replaced_in
from lab.models.sdpa_calls import OfSdpaCalls, uses
from lab.models.softmaxes import LayerSoftmax, RuleFactory, SoftmaxFactory, make_softmaxes
from lab.signals import undisturbed

Model = TypeVar("Model", bound=nn.Module)
# Options that name a part of the softmax, which has options of its own.
_PARTS = ("normaliser", "schedule")
# An option that an error of the command line names as the one that was meant.
_OPTION = r"'softmax\.(?:(\w+)\.)?(\w+)'"
_META = torch.device("meta")
# Names of classes that attend. A softmax elsewhere may be that of a router or of a loss.
_ATTENDS = "attention|attn|(?-i:MHSA|MHA|MSA)|self_?att|cross_?att|transformer_?(block|layer)"
# Those that attend over channels: XCiT's, Florence-2's.
_OVER_CHANNELS = "^xca$|channel_?att|cross_?covariance"


def replace_softmax(model: Model, softmax: str | SoftmaxFactory | RuleFactory = "softmax", **options: Any) -> Model:
    """Returns the model with each attention module under a rule and a normaliser of the lab; weights are kept.

        lab.replace_softmax(model, "norm_softmax", statistic="std")
        lab.replace_softmax(model, "adaptive_temperature", normaliser="plus_one")
        lab.replace_softmax(model, "softmax", normaliser={"name": "plus_one", "bias": "learned"})

    If tau is not given, it is the number that the model divides its scores by. A softmax that was put in earlier is
    replaced. Call it before the optimiser is made, since rules and normalisers may add parameters to the model.

    Args:
        model: of Hugging Face ``transformers``, of timm, or any other whose attention modules are
            ``nn.MultiheadAttention`` or call ``F.scaled_dot_product_attention``. One that calls it has attributes
            ``num_heads`` (or ``n_head``, ``heads``, ...), and ``head_dim`` or ``embed_dim`` (or ``d_model``,
            ``hidden_size``, ``dim``, ..., or one linear layer ``qkv``); ``scale``, where it is not 1 / sqrt(head_dim).
            What a module adds to its scores is kept.
        softmax: its name, as on the command line (``softmax=norm_softmax``), or a factory of rules or of both parts.
        options: of the named softmax; ``normaliser`` and ``schedule`` take a name, or a dict of options with the
            ``name`` among them.

    Raises:
        LabError: if there is no such softmax or option, or the model's softmax cannot be replaced; the model is then
            left as it was.
    """
    _check_restorable(model)
    if any(isinstance(module, Observable) for module in model.modules()):
        raise LabError(
            f"{type(model).__name__} is a model of the lab: choose its softmax when you make it, with softmax=..."
        )
    factory, schedule = _chosen(softmax, options)
    makers: dict[tuple[int, int, int | None], Iterator[LayerSoftmax]] = {}
    made: list[ReplacedSoftmax] = []
    for way, module in _attention_modules(model):
        shape = Heads(module)
        heads = (shape.heads, shape.head_dim)
        try:
            # Layers share parameters within a tower of one shape: only CLIP's text tower has a longest length.
            new = make_softmaxes(factory, *heads, trained_length=shape.longest)
            one = next(makers.setdefault((*heads, shape.longest), new))
            if getattr(module, "is_causal", False):
                check_causal(*one)
        except (TypeError, ValueError) as error:  # TypeError: an option that the class does not have
            raise LabError(f"{type(module).__name__}: {error}") from error
        # A temperature that was given stays; the default, sqrt(D), gives way to the temperature of the model.
        own_scale = _tau_of(factory) is None and one.rule.default_tau == math.sqrt(shape.head_dim)
        if own_scale:
            one.rule.default_tau = 1 / shape.scale
        if schedule is not None and not one.normaliser.takes_temperature:
            raise LabError(f"{type(one.normaliser).__name__} has no temperature to heat: leave schedule out")
        own = way(module, shape, one, own_scale, schedule)
        _like(next(module.parameters(), next(model.parameters(), None)), own)
        made.append(own)
    held = Counter(id(one) for own in made for one in own.parameters())
    for own in made:
        own.shared = tuple(name for name, one in own.named_parameters() if held[id(one)] > 1)
    with undisturbed():  # Ctrl-C would leave some modules changed, and others half
        restore_softmax(model)
        for own, before in zip(made, [own.state_before() for own in made], strict=True):
            own.install(before)
        heat(model, 0.0)
    if hasattr(model, "peft_config") and any(True for own in made for _ in own.parameters()):
        tell(
            f"{type(model).__name__}.save_pretrained leaves out what the new softmax learns: call replace_softmax "
            f'before get_peft_model, with modules_to_save=["{NAME}"] in the config of the adapter'
        )
    return model


def restore_softmax(model: Model) -> Model:
    """Returns the model with its own softmax, as before :func:`replace_softmax`; any other model is left as it is.

    Raises:
        LabError: if something was put around the forward pass of its attention since; the model is then left as it was.
    """
    _check_restorable(model)
    with undisturbed():
        for own in replaced_in(model):
            own.uninstall()
    return model


def _check_restorable(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise LabError(f"{model!r} is not a model: give a torch.nn.Module, not its name")
    for own in replaced_in(model):
        own.check_uninstall()


def heat(model: nn.Module, progress: float) -> None:
    """Moves tau of every replaced softmax that has a schedule.

    Args:
        model: under a softmax of the lab.
        progress: share of training that is done, 0 to 1.
    """
    for own in replaced_in(model):
        if own.schedule is not None:
            own.rule.set_tau(own.schedule(progress, own.rule.default_tau))


def _attention_modules(model: nn.Module) -> list[tuple[type[ReplacedSoftmax], nn.Module]]:
    """The attention modules of a model, each with the subclass of ReplacedSoftmax that reaches it.

    Raises:
        LabError: if there is none, or some attention of the model cannot be reached.
    """
    found: dict[int, tuple[type[ReplacedSoftmax], nn.Module]] = {}
    ways: list[type[ReplacedSoftmax]] = [OfMultiheadAttention, OfSdpaCalls]
    if "transformers" in sys.modules:
        from lab.models.hugging_face import OfHuggingFace  # an optional extra, and seconds to import

        ways.insert(0, OfHuggingFace)
    for way in ways:
        for module in way.found_in(model):
            found.setdefault(id(module), (way, module))
    _check_whole(model, found.keys())
    if not found:
        raise LabError(
            f"{type(model).__name__} has no softmax that could be replaced: none of its modules asks transformers for "
            "an attention function, calls F.scaled_dot_product_attention, or is an nn.MultiheadAttention"
        )
    return [*found.values()]


def _check_whole(model: nn.Module, reached: Set[int]) -> None:
    """Raises LabError if some attention of the model would keep its own softmax, or be replaced twice."""
    within: set[int] = set()
    for module in model.modules():
        if id(module) in reached:
            inner = [one for one in module.modules() if one is not module]
            within |= {id(one) for one in inner}
            if (twice := next((one for one in inner if id(one) in reached), None)) is not None:
                raise LabError(
                    f"the softmax of {type(model).__name__} cannot be replaced: its {type(module).__name__} calls "
                    f"attention itself and holds {type(twice).__name__}, which does so too"
                )
    for module in model.modules():
        name = type(module).__name__
        if id(module) in reached and re.search(_OVER_CHANNELS, name, re.I):
            why = "attends over channels, not over tokens"
        elif id(module) not in reached | within and re.search(_ATTENDS, name, re.I) and _has_a_softmax(module):
            why = "works out a softmax by itself, and would keep it"
        else:
            continue
        raise LabError(f"the softmax of {type(model).__name__} cannot be replaced as a whole: its {name} {why}")


def _has_a_softmax(module: nn.Module) -> bool:
    """Tells if a module works out a softmax: by a function, by a module made on the spot, or by one that it holds."""
    held = any(isinstance(child, nn.Softmax) for child in module.children())
    return held or uses(module, "softmax") or uses(module, "Softmax")


def _chosen(
    softmax: str | SoftmaxFactory | RuleFactory, options: Mapping[str, Any]
) -> tuple[SoftmaxFactory, HeatTreatment | None]:
    """Returns the factory of each layer's softmax, and the schedule of its tau."""
    if not isinstance(softmax, str):
        if isinstance(softmax, nn.Module) or not (callable(softmax) or isinstance(softmax, SoftmaxFactory)):
            raise LabError(
                f"softmax={softmax!r} is not a softmax: give a name, or a class of rules (functools.partial binds its "
                "options), from which every layer makes a rule of its own"
            )
        if options:
            raise LabError(
                f"{', '.join(options)}: options need a softmax given by name; bind those of a class by partial"
            )
        return softmax if isinstance(softmax, SoftmaxFactory) else SoftmaxFactory(softmax), None
    try:
        config = softmax_config(softmax, *_overrides(options))
    except LabError as error:
        told = re.sub(_OPTION, lambda option: _in_python(option, options), str(error))
        unnamed = [key for key in _PARTS if isinstance(part := options.get(key), Mapping) and "name" not in part]
        if not unnamed:
            raise LabError(told) from cause_of(error)
        named = f"for an option of another {unnamed[0]}, name that one, too: {unnamed[0]}={{'name': ..., ...}}"
        raise LabError(f"{told}; {named}") from cause_of(error)
    schedule = config.get("schedule")
    return softmax_factory(config), instantiate(schedule) if schedule else None


def _offloaded_from(module: nn.Module) -> torch.device:
    """The device that accelerate brings the weights of a module to while it runs; meta where it does not."""
    hooks = (getattr(one, "_hf_hook", None) for one in module.modules())
    return next(
        (torch.device(to) for hook in hooks if (to := getattr(hook, "execution_device", None)) is not None), _META
    )


def _overrides(options: Mapping[str, Any]) -> Iterator[str]:
    """Options as they are typed on the command line."""
    for key, value in options.items():
        part = {"name": value} if isinstance(value, str) else value
        if key not in _PARTS or not isinstance(part, Mapping):
            yield f"softmax.{key}={_typed(key, value)}"
            continue
        if "name" in part:
            yield f"softmax/{key}={part['name']}"
        yield from (f"softmax.{key}.{name}={_typed(name, one)}" for name, one in part.items() if name != "name")


def _in_python(option: re.Match[str], options: Mapping[str, Any]) -> str:
    """An option of the command line as an argument of :func:`replace_softmax`, with its value where one is given."""
    part, name = option.groups()
    value = repr(options[name]) if name in options else "..."
    return f"{name}={value}" if part is None else f'{part}={{"{name}": {value}}}'


def _typed(key: str, value: Any) -> str:
    try:
        return json.dumps(value, default=_number, allow_nan=False)
    except (TypeError, ValueError) as error:  # ValueError: infinite, or not a number
        raise LabError(
            f"{key}={value!r} cannot be an option of a softmax: give a finite number, text or a list"
        ) from cause_of(error)


def _number(value: object) -> object:
    """A number of numpy as one of Python."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError


def _tau_of(factory: SoftmaxFactory) -> float | None:
    """The temperature that a factory gives its rules; None where it gives none."""
    return factory.rule.keywords.get("tau") if isinstance(factory.rule, functools.partial) else None


def _like(parameter: Tensor | None, own: ReplacedSoftmax) -> None:
    """Moves a softmax to a parameter's device and type (below 32 bit it would be too coarse); sets its tau there."""
    if parameter is not None:
        fine = parameter.dtype.is_floating_point and parameter.dtype.itemsize >= 4
        device = parameter.device if parameter.device != _META else _offloaded_from(own.owner)
        own.to(device, parameter.dtype if fine else torch.float32)
    own.rule.set_tau(own.rule.default_tau)  # after the move: a float64 model has it in float64
    own.train(own.owner.training)
