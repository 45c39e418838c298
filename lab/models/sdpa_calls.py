"""Any module that calls ``F.scaled_dot_product_attention``, timm's among them: its calls are answered by the lab."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lab.console import LabError
from lab.models.replaced_softmax import ReplacedSoftmax

CALL = "scaled_dot_product_attention"


class OfSdpaCalls(ReplacedSoftmax):
    """The softmax of a module whose own methods name ``F.scaled_dot_product_attention``."""

    called = False
    # Whether the module's forward pass under way records gradients.
    with_gradients = False

    @staticmethod
    def found_in(model: nn.Module) -> list[nn.Module]:
        return [module for module in model.modules() if names(module, CALL)]

    def state_before(self) -> dict[str, Any]:
        # timm's modules write attention out, without the call, unless fused_attn is True: install sets it.
        return {name: vars(self.owner)[name] for name in ("forward", "fused_attn") if name in vars(self.owner)}

    def install(self, before: Any) -> None:
        super().install(before)
        vars(self.owner).update({name: True for name in before if name == "fused_attn"}, forward=AnsweredForward(self))

    def uninstall(self) -> None:
        super().uninstall()
        vars(self.owner).pop("forward")
        vars(self.owner).update(self.before)


class AnsweredForward:
    """A module's forward, within which its calls of attention are answered by its new softmax.

    It is an object and not a closure, so that the model can be copied and pickled.

    Args:
        softmax: the new softmax of the module.
    """

    def __init__(self, softmax: OfSdpaCalls) -> None:
        self.softmax = softmax

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module, softmax = self.softmax.owner, self.softmax
        softmax.called = False
        softmax.with_gradients = torch.is_grad_enabled()
        with _Answers(softmax):
            if "forward" in softmax.before:
                out = softmax.before["forward"](*args, **kwargs)
            else:
                out = type(module).forward(module, *args, **kwargs)
        if not softmax.called:
            raise LabError(
                f"{type(module).__name__} has used its own softmax, without a call of F.{CALL}: choose its fused "
                "attention"
            )
        return out


class _Answers(TorchFunctionMode):
    def __init__(self, softmax: OfSdpaCalls) -> None:
        super().__init__()
        self.softmax = softmax

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            return _answer(self.softmax, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _answer(
    softmax: OfSdpaCalls,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    softmax.called = True
    if softmax.with_gradients and not torch.is_grad_enabled():
        raise LabError(
            f"{type(softmax.owner).__name__} attends without gradients within a forward pass that has them, as under a "
            "checkpoint, so that the backward pass would use the module's own softmax: checkpoint the module as a whole"
        )
    if is_causal and query.shape[2] > 1:
        softmax.said_causal()
    return softmax.of_call(query, key, value, attn_mask, is_causal, dropout_p, scale)


def names(module: nn.Module, function: str) -> bool:
    """Tells if a method of a module's class, or of a base class, uses a function by this name."""
    bases = [base for base in type(module).__mro__ if base is not nn.Module]
    methods = [method for base in bases for method in vars(base).values()]
    return any(function in code.co_names for method in methods for code in _codes(method))


def _codes(method: Any) -> Iterator[CodeType]:
    """Yields the code of a method and of the functions within it; decorated, static and class methods are unwrapped."""
    if isinstance(method, staticmethod | classmethod):
        method = method.__func__
    code = getattr(inspect.unwrap(method) if callable(method) else method, "__code__", None)
    within = [code] if isinstance(code, CodeType) else []
    while within:
        yield (one := within.pop())
        within += [inner for inner in one.co_consts if isinstance(inner, CodeType)]
