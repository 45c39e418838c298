"""State of the user's own modules that changes in training and that no checkpoint holds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from lab.console import name_of, tell
from lab.runs.own_code import own_file


def tell_unsaved(model: nn.Module, step: Callable[[nn.Module], object]) -> None:
    """Tells what a training step changes in the user's own modules beside parameters and buffers; changes nothing.

    A run that was killed goes on without it, and seeds trained together share it. Looked at are numbers, tensors and
    generators that are plain attributes, and buffers that are not saved. What only shows the last step is told, too.

    Args:
        model: what is trained, with all its modules.
        step: takes a model through a forward pass of training.
    """
    files = {file: own_file(file) for file in {type(one).__module__ for one in model.modules()}}
    own = [
        name
        for name, one in model.named_modules()
        if files[type(one).__module__] and type(one).get_extra_state is nn.Module.get_extra_state
    ]
    if not own:
        return
    try:
        tried = copy.deepcopy(model, _not_copied(model)).train()
        before = dict(_plain_state(tried, own))
        step(tried)
        after = dict(_plain_state(tried, own))
        changed = [key for key in before if key in after and not _same(before[key], after[key])]
    except Exception:  # no copy can be made, or the model takes no step of two samples: training itself will tell
        return
    for what in dict.fromkeys(f"{name_of(type(model.get_submodule(module)))}.{name}" for module, name in changed):
        tell(
            f"{what} changes in a training step, and no checkpoint holds it: if a later step reads it, a run that was "
            "interrupted goes on differently. Make it a buffer (register_buffer), or draw from torch's own generator"
        )


def _not_copied(model: nn.Module) -> dict[int, Any]:
    """Objects that a copy of the model has in place of its own, by the id of these, which would be large or fail."""
    # A forward pass leaves parameters as they are.
    instead: dict[int, Any] = {id(parameter): parameter for parameter in model.parameters()}
    for one in model.modules():
        for name, value in vars(one).items():
            if isinstance(value, torch.Generator):
                instead[id(value)] = value.clone_state()
            elif isinstance(value, Tensor) and not value.is_leaf:
                instead[id(value)] = value.detach().clone()
            elif name.endswith("_hooks"):  # they may hold the whole trainer
                instead[id(value)] = type(value)()
    return instead


def _plain_state(model: nn.Module, names: list[str]) -> Iterator[tuple[tuple[str, str], Any]]:
    """Copies of what the named modules hold and their state dict does not, by module and name."""
    for module in names:
        one = model.get_submodule(module)
        saved = one.state_dict()
        unsaved = {name: buffer for name, buffer in one.named_buffers(recurse=False) if name not in saved}
        for name, value in (vars(one) | unsaved).items():
            if isinstance(value, torch.Generator):
                yield (module, name), value.get_state()
            elif isinstance(value, Tensor):
                yield (module, name), value.detach().clone()
            elif isinstance(value, int | float) and not isinstance(value, bool):
                yield (module, name), value


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if not isinstance(one, Tensor):
        return one == other or (one != one and other != other)  # NaN is as it was
    alike = (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
    return alike and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
