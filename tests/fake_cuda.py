"""A GPU that is not there: its tensors know their shape, type and device, and hold no numbers.

Operations on them are torch's own (``FakeTensorMode``), so that a tensor on the wrong device is an error as it is on a
machine with a GPU. Tensors on the processor are real.
"""

from __future__ import annotations

import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from conftest import ROOT
from lightning import LightningModule
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.autograd.function import BackwardCFunction
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torchmetrics import Metric

from lab.attention import precision

CUDA = torch.device("cuda", 0)
_ATEN = torch.ops.aten
_COPIES = (_ATEN._to_copy.default, _ATEN.copy_.default)
_INDEXED = (_ATEN.index.Tensor, _ATEN.index_put.default, _ATEN.index_put_.default, _ATEN._index_put_impl_.default)


class Waits(AssertionError):
    """The processor would wait here until the GPU has done all that it was told to."""


# One for all, so that what is kept of the GPU from one block to the next fits.
_FAKE = FakeTensorMode(allow_non_fake_inputs=True)


class FakeGPU(TorchDispatchMode):
    """Carries out operations of the GPU as fake ones, and all others as they are.

    Args:
        may_wait: what is read from the GPU is made up, zeros and random numbers; False raises :class:`Waits` with the
            line that reads. These are operations whose result or its shape depends on numbers (``.item()``,
            ``.tolist()``, ``bool(tensor)``, ``nonzero``, indexing by a mask), and copies to or from the GPU that are
            not ``non_blocking``.
        float64: whether there are 64-bit floats; on Apple's GPUs there are none, and to make one is a TypeError.
    """

    def __init__(self, may_wait: bool = False, float64: bool = True) -> None:
        super().__init__()
        self.may_wait, self.float64 = may_wait, float64

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        to = torch.device(kwargs.get("device") or "cpu").type
        if to != "cuda" and not any(isinstance(tensor, FakeTensor) for tensor in tensors):
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if not self.may_wait and (why := _waits(func, args, kwargs)):
            raise Waits(f"{func} waits for the GPU ({why}) in {_asked_by()}")
        if func is _ATEN._local_scalar_dense.default:
            return 0.0 if args[0].dtype.is_floating_point else 0
        if func is _ATEN.bincount.default:
            return args[0].new_zeros(args[2] if len(args) > 2 else kwargs["minlength"])
        made = func(*args, **kwargs)
        if not self.float64 and any(map(_is_wide, tree_leaves(made))):
            raise TypeError(f"{func} makes 64-bit floats, which this GPU has none of, in {_asked_by()}")
        with unset_fake_temporarily():
            return tree_map_only(FakeTensor, _arrived, made)


def _is_wide(made: Any) -> bool:
    return isinstance(made, FakeTensor) and made.device.type == "cuda" and made.dtype in (torch.float64, torch.cdouble)


def _arrived(tensor: FakeTensor) -> Tensor:
    """Numbers for a tensor that has come to the processor."""
    if tensor.device.type != "cpu":
        return tensor
    if tensor.dtype.is_floating_point:
        return torch.rand(tensor.shape, dtype=tensor.dtype)
    return torch.randint(2, tensor.shape).to(tensor.dtype)


def _waits(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> str | None:
    """Why an operation with a tensor of the GPU makes the processor wait; None where it does not."""
    if func in _INDEXED:
        indices = [index for index in args[1] if index is not None]
        if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
            return "how many are chosen depends on a mask"
        return "an index lies on the processor" if any(index.device.type == "cpu" for index in indices) else None
    if func in _COPIES:
        copies = func is _ATEN.copy_.default
        source, to = (args[1], args[0].device) if copies else (args[0], kwargs.get("device") or args[0].device)
        blocking = not (kwargs.get("non_blocking") or (copies and len(args) > 2 and args[2]))
        return "a copy that is not non_blocking" if source.device.type != torch.device(to).type and blocking else None
    if torch.Tag.data_dependent_output in func.tags:
        return "a number is read"
    return "its shape depends on numbers" if torch.Tag.dynamic_output_shape in func.tags else None


def _asked_by() -> str:
    """The innermost line of this repository, else of whoever called."""
    frames = traceback.extract_stack()[:-2]
    own = [frame for frame in frames if frame.filename.startswith(str(ROOT)) and "site-packages" not in frame.filename]
    last = (own or frames)[-1]
    return f"{last.filename.removeprefix(f'{ROOT}/')}:{last.lineno}: {last.line}"


@contextmanager
def fake_gpu(may_wait: bool = False, float64: bool = True) -> Iterator[FakeGPU]:
    """``device="cuda"`` is there within the block, autograd and autocast included; see :class:`FakeGPU`."""
    states = "torch.cuda.get_rng_state", "torch.cuda.set_rng_state"
    with ExitStack() as stack:
        for name in states:
            stack.enter_context(patch(name, lambda *_, **__: torch.zeros(16, dtype=torch.uint8)))
        stack.enter_context(patch("torch.cuda.amp.common.amp_definitely_not_available", lambda: False))
        stack.enter_context(patch("torch.cuda.is_bf16_supported", lambda *_: True))
        stack.enter_context(patch("torch.autograd._engine_run_backward", run_backward))
        # Below the other, where torch looks for it before it asks for a driver.
        stack.enter_context(_FAKE)
        if not float64:
            stack.enter_context(patch.object(precision, "NO_FLOAT64", ["cuda"]))
        yield stack.enter_context(FakeGPU(may_wait, float64))


def moved(module: nn.Module) -> nn.Module:
    """The module with its parameters and buffers on the GPU, in place; what layers share stays shared."""
    there: dict[int, Tensor] = {}

    def of(tensor: Tensor) -> Tensor:
        if id(tensor) not in there:
            fake = tensor.detach().to(CUDA, non_blocking=True)
            there[id(tensor)] = nn.Parameter(fake, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else fake
        return there[id(tensor)]

    for part in module.modules():
        tensors: tuple[dict[str, Any], ...] = (part._parameters, part._buffers)
        for own in tensors:
            own.update({name: of(tensor) for name, tensor in own.items() if tensor is not None})
        if isinstance(part, Metric):
            part.to(CUDA, non_blocking=True)
        if isinstance(part, LightningModule):
            part._device = CUDA
    return module


def run_backward(
    outputs: Sequence[Tensor],
    slopes: Sequence[Tensor | None],
    keep_graph: bool,
    create_graph: bool,
    inputs: Sequence[Tensor],
    allow_unreachable: bool = True,
    accumulate_grad: bool = False,
) -> tuple[Tensor | None, ...]:
    """Autograd's engine in Python: torch's own asks the driver for the streams of a GPU.

    Within ``torch.func`` (a function that is worked out again, of more than one chunk) its numbers are not autograd's.
    """
    wanted = {_edge(one): place for place, one in enumerate(inputs)}
    found: dict[int, Tensor] = {}
    given: dict[Any, dict[int, Tensor]] = defaultdict(dict)

    def add(edge: tuple[Any, int], slope: Tensor | None) -> None:
        node, number = edge
        if node is None or slope is None:
            return
        # A node may leave undone what was broadcast, or hand on another type.
        about = node._input_metadata[number]
        slope = slope.sum_to_size(about.shape).to(about.dtype)
        before = given[node].get(number)
        given[node][number] = slope if before is None else before + slope

    with torch.set_grad_enabled(create_graph):
        for output, slope in zip(outputs, slopes, strict=True):
            add(_edge(output), torch.ones_like(output) if slope is None else slope)
        for node in _in_order([_edge(output)[0] for output in outputs]):
            own = given.pop(node, {})
            for number, slope in own.items():
                if (node, number) in wanted:
                    found[wanted[node, number]] = slope
            if not own:
                continue
            if hasattr(node, "variable"):
                if not inputs or accumulate_grad:
                    leaf = node.variable
                    leaf.grad = own[0] if leaf.grad is None else leaf.grad + own[0]
                continue
            filled = [own.get(number, ...) for number in range(len(node._input_metadata))]
            back = _called(node, filled)
            edges = node.next_functions
            if isinstance(node, BackwardCFunction):
                edges = [edge for edge in edges if edge[0] is not None]
            for edge, slope in zip(edges, back, strict=True):
                add(edge, slope)
    return tuple(found.get(place) for place in range(len(inputs)))


def _called(node: Any, slopes: list[Any]) -> Sequence[Tensor | None]:
    """What a node of the graph makes of the slopes of its outputs; ... stands for one that nothing depends on."""
    own = isinstance(node, BackwardCFunction)
    zeros = [
        torch.zeros(about.shape, dtype=about.dtype, device=about.device) if slope is ... and own else slope
        for slope, about in zip(slopes, node._input_metadata, strict=True)
    ]
    made = (node.apply if own else node)(*(None if slope is ... else slope for slope in zeros))
    made = made if isinstance(made, tuple) else (made,)
    # A function of our own answers for all that it was given, also for what is no tensor.
    return [slope for slope, asked in zip(made, node.needs_input_grad, strict=True) if asked] if own else made


def _edge(tensor: Tensor) -> tuple[Any, int]:
    if tensor.grad_fn is not None:
        return tensor.grad_fn, tensor.output_nr
    return torch.autograd.graph.get_gradient_edge(tensor).node, 0


def _in_order(roots: Sequence[Any]) -> Iterator[Any]:
    """The nodes of a graph, each after all that come before it."""
    parents: Counter[Any] = Counter()
    seen, stack = set(roots), list(set(roots))
    while stack:
        for node, _ in stack.pop().next_functions:
            if node is not None:
                parents[node] += 1
                if node not in seen:
                    seen.add(node)
                    stack.append(node)
    ready = [node for node in dict.fromkeys(roots) if not parents[node]]
    while ready:
        node = ready.pop()
        yield node
        for child, _ in node.next_functions:
            if child is not None:
                parents[child] -= 1
                if not parents[child]:
                    ready.append(child)
