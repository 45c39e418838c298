"""Any module that calls ``F.scaled_dot_product_attention``, timm's among them: its calls are answered by the lab."""

from __future__ import annotations

import dis
import inspect
import threading
from collections.abc import Iterator
from functools import cache
from types import CodeType, FunctionType
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lab.attention.precision import autocast_dtype
from lab.console import LabError
from lab.models.replaced_softmax import ReplacedSoftmax, without_replicas, wrapped_since

CALL = "scaled_dot_product_attention"
# The softmaxes whose modules run in this thread, from the outermost to the innermost.
_LOCAL = threading.local()


class OfSdpaCalls(ReplacedSoftmax):
    """The softmax of a module whose methods call ``F.scaled_dot_product_attention``, perhaps by a helper function."""

    @staticmethod
    def found_in(model: nn.Module) -> list[nn.Module]:
        return [module for module in model.modules() if uses(module, CALL)]

    @property
    def answered(self) -> list[str]:
        """The methods whose calls are answered: ``forward``, and those that call attention, if others call them."""
        others = [name for name in _naming(self.owner, CALL) if not name.startswith("__")]
        return list(dict.fromkeys(["forward", *others]))

    def state_before(self) -> dict[str, Any]:
        # timm's modules write attention out, without the call, unless fused_attn is True: install sets it.
        return {name: vars(self.owner)[name] for name in (*self.answered, "fused_attn") if name in vars(self.owner)}

    def install(self, before: Any) -> None:
        super().install(before)
        own = {name: Answered(self, name) for name in self.answered}
        vars(self.owner).update({name: True for name in before if name == "fused_attn"}, **own)

    def check_uninstall(self) -> None:
        super().check_uninstall()
        if not all(isinstance(vars(self.owner).get(name), Answered) for name in self.answered):
            raise wrapped_since(self.owner)

    def uninstall(self) -> None:
        super().uninstall()
        for name in self.answered:
            vars(self.owner).pop(name)
        vars(self.owner).update(self.before)

    def _replicate_for_data_parallel(self) -> NoReturn:
        # Of nn.Module; torch.nn.parallel.replicate calls it for each module that it copies.
        raise without_replicas(self.owner)


class Answered:
    """A method of a module, within which its calls of attention are answered by its new softmax.

    It is an object and not a closure, so that the model can be copied and pickled.

    Args:
        softmax: the new softmax of the module.
        name: of the method.
    """

    def __init__(self, softmax: OfSdpaCalls, name: str) -> None:
        self.softmax, self.name = softmax, name
        static = inspect.getattr_static(type(softmax.owner), name)
        # Whether the method is given the module: static and class methods are not.
        self.takes_self = not isinstance(static, staticmethod | classmethod)
        self.alone = len(softmax.answered) == 1

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module, softmax = self.softmax.owner, self.softmax.asked
        if self.name in softmax.before:
            method, own = softmax.before[self.name], args
        else:
            method, own = getattr(type(module), self.name), (module, *args) if self.takes_self else args
        # A compiler cannot read what belongs to a thread: there the innermost method answers.
        compiling = torch.compiler.is_compiling()
        under_way = [] if compiling else vars(_LOCAL).setdefault("under_way", [])
        if any(one is softmax for one in under_way):
            return method(*own, **kwargs)
        depth = len(under_way)
        calls: list[None] = []
        answers = _Answers(softmax, torch.is_grad_enabled(), calls)
        try:
            under_way.append(softmax)
            with answers:
                out = method(*own, **kwargs)
        finally:
            del under_way[depth:]
            if not compiling:
                answers.over = True
        if self.name == "forward" and not calls and (self.alone or not compiling):
            raise LabError(
                f"{type(module).__name__} has used its own softmax, without a call of F.{CALL}: choose its fused "
                "attention (of Hugging Face: restore_softmax, model.set_attn_implementation('sdpa'), replace_softmax)"
            )
        return out


class _Answers(TorchFunctionMode):
    """Answers the calls of attention within the block.

    Args:
        softmax: that answers.
        with_gradients: whether the method under way records gradients.
        calls: list that gets an entry for each call.
    """

    def __init__(self, softmax: OfSdpaCalls, with_gradients: bool, calls: list[None]) -> None:
        super().__init__()
        self.softmax, self.with_gradients, self.calls = softmax, with_gradients, calls
        # Torch keeps answering after the block where Ctrl-C came as it was left.
        self.over = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention and not self.over:
            self.calls.append(None)
            return _answer(self.softmax, self.with_gradients, *args, **(kwargs or {}))
        if func is Tensor.unflatten:  # before torch 2.14, Dynamo cannot trace the super() in it
            func = torch.unflatten
        return func(*args, **(kwargs or {}))


def _answer(
    softmax: OfSdpaCalls,
    with_gradients: bool,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if with_gradients and not torch.is_grad_enabled():
        raise LabError(
            f"{type(softmax.owner).__name__} attends without gradients within a forward pass that has them, as under a "
            "checkpoint, so that the backward pass would use the module's own softmax: checkpoint the module as a whole"
        )
    if is_causal and query.shape[2] > 1:
        softmax.mark_causal()
    z = softmax.of_call(query, key, value, attn_mask, is_causal, dropout_p, scale)
    # As the function itself under autocast.
    used = autocast_dtype(z.device)
    return z if used is None or z.dtype != torch.float32 else z.to(used)


def uses(module: nn.Module, function: str) -> bool:
    """Tells if a method of a module's class, or of a base class, uses a function of this name."""
    return bool(_naming(module, function))


def _naming(module: nn.Module, function: str) -> list[str]:
    """The methods of a module's class, and of its base classes, that use a function of this name."""
    kind: Any = type(module)  # for mypy, which takes no class for hashable
    return list(_methods_that_use(kind, function))


@cache
def _methods_that_use(kind: type, function: str) -> tuple[str, ...]:
    bases = [base for base in kind.__mro__ if base is not nn.Module]
    methods = [one for base in bases for one in vars(base).items()]
    return tuple(dict.fromkeys(name for name, one in methods if _uses(one, function, set())))


def _uses(method: Any, function: str, seen: set[CodeType]) -> bool:
    """Tells if a method uses a function of this name: itself, under another name, or by a function of its package."""
    if isinstance(method, staticmethod | classmethod):
        method = method.__func__
    method = inspect.unwrap(method) if callable(method) else method
    code, around = getattr(method, "__code__", None), getattr(method, "__globals__", {})
    if not isinstance(code, CodeType) or code in seen:
        return False
    seen.add(code)
    package = str(around.get("__name__")).split(".")[0]
    for one in _within(code):
        if function in one.co_names:
            return True
        for called in (around.get(step.argval) for step in dis.get_instructions(one) if step.opname == "LOAD_GLOBAL"):
            if getattr(called, "__name__", None) == function:
                return True
            own = isinstance(called, FunctionType) and called.__module__.split(".")[0] == package
            if own and _uses(called, function, seen):
                return True
    return False


def _within(code: CodeType) -> Iterator[CodeType]:
    """Yields a code and those of the functions within it."""
    within = [code]
    while within:
        yield (one := within.pop())
        within += [inner for inner in one.co_consts if isinstance(inner, CodeType)]
