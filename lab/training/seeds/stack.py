"""Models of one architecture as one batched model: stacked parameters, a single forward pass.

Shapes: S seeds; a parameter [...] of one model is row s of a stacked parameter [S, ...].
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from timm.layers import DropPath
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torch.optim import Optimizer

from lab.attention.normaliser import Normaliser
from lab.attention.precision import but_not_to_16_bit
from lab.attention.rule import TemperatureRule
from lab.console import LabError, first_line, lacks_memory, name_of, users_line_of
from lab.observation.recorder import own_random_numbers

_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
# What PyTorch says of code that reads a number or draws one; of operators that it cannot batch it says other things.
_READS_OR_DRAWS = r"\.item\(\)|data-dependent control flow|dynamic shape|data pointer|random operation"


class Stack(nn.Module):
    """S models as one. The single models stay usable: their parameters and buffers become views of the rows.

    So a callback or a temperature schedule that is given one model reads and changes its row of the stack.

    Args:
        models: models of one architecture.

    Raises:
        LabError: if a model draws random numbers of its own while training, which a vectorised pass would
            draw in another order than its single run.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        _refuse_random(models[0])
        # A plain list: the models' own tensors are views, not state of the stack.
        self._models = list(models)
        # Not on "meta": that would untie parameters which layers share.
        self._skeleton = [copy.deepcopy(models[0])]
        parameters, buffers = stack_module_state(self._models)
        self._parameter_names, self._buffer_names = list(parameters), list(buffers)
        self._of_softmaxes = set(_of_softmaxes(models[0]))
        self.rows = nn.ParameterList(nn.Parameter(stacked, stacked.requires_grad) for stacked in parameters.values())
        for index, stacked in enumerate(buffers.values()):
            self.register_buffer(f"buffer_{index}", _apart(stacked))
        self._run = torch.func.vmap(self._one)
        self.bind()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves and converts the rows; to 16 bit none of rules and normalisers, as these have it in a single model."""
        fine, (rows, buffers) = but_not_to_16_bit(fn), self._state()
        own = {id(tensor) for name, tensor in (rows | buffers).items() if name in self._of_softmaxes}
        return super()._apply(lambda tensor: (fine if id(tensor) in own else fn)(tensor), recurse)

    def __len__(self) -> int:
        return len(self._models)

    def forward(self, x: Any) -> Tensor:
        """x: a tensor (or nest of tensors) [S, B, ...] -> [S, B, classes]."""
        return self._run(*self._state(), x)

    def compile_forward(self) -> None:
        """Compiles the batched pass with torch.compile."""
        # Compiled per shape: under vmap, torch 2.15 fails on symbolic sizes and then stays eager for good.
        self._run = torch.compile(self._run, dynamic=False)

    def check(self, x: Any, one_by_one: str) -> None:
        """Tries the batched pass once, uncompiled, on a training batch; leaves parameters and buffers as they are.

        Args:
            x: as :meth:`forward` takes it.
            one_by_one: what to type to train the models one after another instead.

        Raises:
            LabError: if a model works alone, but not in a batched pass; names the line that fails.
        """
        parameters, buffers = self._state()
        with torch.no_grad(), own_random_numbers(next(iter(parameters.values())).device):
            for training in (False, True):
                self.set_training(training)
                # Copies: in training, a batch norm moves its running means.
                own = {name: buffer.clone() for name, buffer in buffers.items()}
                drawn = _of_python_and_numpy()
                try:
                    torch.func.vmap(self._one)(parameters, own, x)
                except Exception as error:
                    if lacks_memory(error):
                        raise
                    # A model that fails alone, too, raises its own error here.
                    self._one(*apply_to_collection((parameters, own, x), Tensor, lambda stacked: stacked[0]))
                    where = users_line_of(error) or type(self._models[0]).__name__
                    why = first_line(error)
                    if re.search(_READS_OR_DRAWS, why):
                        why = (
                            "code there must not read a number out of a tensor (.item(), if, a mask as an index; "
                            "choose with torch.where) or draw random numbers"
                        )
                    raise LabError(
                        f"seeds= trains all seeds in one batched pass, and {where}, cannot be part of it: {why}; "
                        f"train one seed after another ({one_by_one})"
                    ) from error
                if drawn != _of_python_and_numpy():
                    raise LabError(
                        "seeds= trains all seeds in one batched pass, and all would share the random numbers that "
                        f"{name_of(type(self._models[0]))} draws from Python or NumPy: train one seed after another "
                        f"({one_by_one})"
                    )

    def set_training(self, training: bool) -> None:
        """Training or evaluation mode of the batched pass."""
        self._skeleton[0].train(training)

    def joined_state(self, states: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """The stack's ``state_dict`` from those of the models, in the precision in which they were saved.

        Buffers that a model does not save (such as positions) are taken from the model itself.
        """
        saved = [{**dict(model.named_buffers()), **state} for model, state in zip(self._models, states, strict=True)]
        rows = {f"rows.{i}": torch.stack([s[n] for s in saved]) for i, n in enumerate(self._parameter_names)}
        buffers = {f"buffer_{i}": torch.stack([s[n] for s in saved]) for i, n in enumerate(self._buffer_names)}
        return rows | buffers

    def bind(self) -> None:
        """Makes parameters and buffers of the models views of the rows; call it whenever rows were moved or cut."""
        # For each stacked parameter, those of all models: to collect them in each step would take a millisecond.
        self._owns = list(zip(*(model.parameters() for model in self._models), strict=True))
        for row, model in enumerate(self._models):
            own = dict(model.named_parameters())
            for name, stacked in zip(self._parameter_names, self.rows, strict=True):
                own[name].data = stacked.data[row]
            for index, name in enumerate(self._buffer_names):
                holder = model.get_submodule(name.rpartition(".")[0])
                setattr(holder, name.rpartition(".")[2], self.get_buffer(f"buffer_{index}")[row])

    def bind_gradients(self) -> None:
        """Makes the models' gradients views of the stacked ones."""
        for stacked, owns in zip(self.rows, self._owns, strict=True):
            rows = [None] * len(owns) if stacked.grad is None else stacked.grad.unbind(0)
            for own, row in zip(owns, rows, strict=True):
                own.grad = row

    def parameter_groups(self, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """An optimiser's parameter groups of the first model, translated to the stacked parameters."""
        stacked = {id(own): row for own, row in zip(self._models[0].parameters(), self.rows, strict=True)}
        return [{**group, "params": [stacked[id(own)] for own in group["params"]]} for group in groups]

    @torch.no_grad()
    def keep(self, rows: Sequence[int], optimizer: Optimizer) -> None:
        """Keeps only the models of these rows, in the optimiser's state too."""
        size, kept = len(self), list(rows)
        # New parameters: autograd remembers the old ones' shape for good.
        cut = {old: nn.Parameter(old.detach()[kept], old.requires_grad) for old in self.rows}
        self.rows = nn.ParameterList(cut.values())
        for group in optimizer.param_groups:
            for place, old in enumerate(group["params"]):
                state = optimizer.state.pop(old, {})
                optimizer.state[cut[old]] = {k: v[kept] if _stacked(v, size) else v for k, v in state.items()}
                group["params"][place] = cut[old]
        for index in range(len(self._buffer_names)):
            setattr(self, f"buffer_{index}", _apart(self.get_buffer(f"buffer_{index}")[kept]))
        self._models = [self._models[row] for row in kept]
        self.bind()

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Stacked parameters and stacked buffers, by their names in a model."""
        buffers = {name: self.get_buffer(f"buffer_{index}") for index, name in enumerate(self._buffer_names)}
        return dict(zip(self._parameter_names, self.rows, strict=True)), buffers

    def _one(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Any) -> Tensor:
        return functional_call(self._skeleton[0], (parameters, buffers), (x,))


def split_optimizer_state(state: dict[str, Any], row: int, size: int) -> dict[str, Any]:
    """One seed's optimiser ``state_dict`` out of that of ``size`` seeds."""
    own = {
        index: {k: v[row].clone() if _stacked(v, size) else v for k, v in entries.items()}
        for index, entries in state["state"].items()
    }
    return {**state, "state": own}


# States of optimisers that are counts, the same for all seeds, and not one value per number of the parameter. The shape
# does not tell the two apart: a parameter may be a single number, too.
_COUNTS = ("step", "mu_product")


def join_optimizer_states(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The optimiser ``state_dict`` of all seeds from those of single ones."""
    first = states[0]
    joined = {
        index: {
            k: torch.stack([state["state"][index][k] for state in states])
            if isinstance(v, Tensor) and k not in _COUNTS
            else v
            for k, v in entries.items()
        }
        for index, entries in first["state"].items()
    }
    return {**first, "state": joined}


def _apart(stacked: Tensor) -> Tensor:
    """A buffer of one number per model, [S], with its numbers far apart in memory; other buffers unchanged.

    With the numbers side by side, the compiler would vectorise over models and run its loops in a single thread.
    """
    if stacked.ndim != 1:
        return stacked
    spaced = stacked.new_zeros(len(stacked), 16)
    spaced[:, 0] = stacked
    return spaced[:, 0]


def _stacked(value: Any, size: int) -> bool:
    """Tells whether a value of an optimiser's state has one row per model, unlike a step count."""
    return isinstance(value, Tensor) and value.ndim > 0 and value.shape[0] == size


def _of_softmaxes(model: nn.Module) -> Iterator[str]:
    """Names of the parameters and buffers of a model's rules and normalisers."""
    for prefix, module in model.named_modules():
        if isinstance(module, TemperatureRule | Normaliser):
            for name, _ in (*module.named_parameters(), *module.named_buffers()):
                yield f"{prefix}.{name}"


def _of_python_and_numpy() -> tuple[object, ...]:
    """State of the generators of Python and NumPy."""
    of_numpy: Any = np.random.get_state(legacy=False)
    return random.getstate(), of_numpy["state"]["key"].tobytes(), of_numpy["state"]["pos"]


def _refuse_random(model: nn.Module) -> None:
    for name, module in model.named_modules():
        rate = module.drop_prob if isinstance(module, DropPath) else module.p if isinstance(module, _DROPOUT) else 0
        if rate:
            raise LabError(
                f"seeds trains models side by side, which cannot draw random numbers of their own, but {name} drops "
                f"with probability {rate:g}: set model.drop_path_rate=0 (or its dropout to 0), or run seeds one by one"
            )
