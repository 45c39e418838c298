"""State of the user's own modules that changes in training and that no checkpoint holds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from lab.console import name_of, tell
from lab.runs.own_code import own_file

# Bytes of the largest model that is looked into: a copy of it is made.
_MOST = 2**30


def tell_unsaved(model: nn.Module, step: Callable[[nn.Module], object]) -> None:
    """Tells what a training step changes in the user's own modules beside parameters and buffers; changes nothing.

    A run that was killed goes on without it, and seeds trained together share it. Looked at are numbers, tensors and
    generators that are plain attributes, and buffers that are not saved. What only shows the last step is told, too. A
    model of more than 1 GiB is not looked into.

    Args:
        model: what is trained, with all its modules.
        step: takes a model through a training step.
    """
    own = {name: one for name, one in model.named_modules() if own_file(type(one).__module__)}
    if not own or sum(parameter.nbytes for parameter in model.parameters()) > _MOST:
        return
    # A generator cannot be copied by deepcopy.
    generators = [value for one in own.values() for value in vars(one).values() if isinstance(value, torch.Generator)]
    try:
        tried = copy.deepcopy(model, {id(one): one.clone_state() for one in generators}).train()
        before = dict(_plain_state(tried, list(own)))
        step(tried)
        after = dict(_plain_state(tried, list(own)))
    except Exception:  # no copy can be made, or the model takes no step of two samples: training itself will tell
        return
    changed = {
        f"{name_of(type(own[module]))}.{name}": None
        for module, name in before
        if (module, name) in after and not _same(before[module, name], after[module, name])
    }
    for what in changed:
        tell(
            f"{what} changes in a training step, and no checkpoint holds it: if a later step reads it, a run that was "
            "interrupted goes on differently. Make it a buffer (register_buffer), or draw from torch's own generator"
        )


def _plain_state(model: nn.Module, names: list[str]) -> Iterator[tuple[tuple[str, str], Any]]:
    """Copies of what the named modules hold and their state dict does not, by module and name."""
    for module in names:
        one = model.get_submodule(module)
        unsaved = {name: buffer for name, buffer in one._buffers.items() if name in one._non_persistent_buffers_set}
        for name, value in (vars(one) | unsaved).items():
            if isinstance(value, torch.Generator):
                yield (module, name), value.get_state()
            elif isinstance(value, Tensor):
                yield (module, name), value.detach().clone()
            elif isinstance(value, int | float) and not isinstance(value, bool):
                yield (module, name), value


def _same(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, Tensor) and isinstance(other, Tensor) else bool(one == other)
