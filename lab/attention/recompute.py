"""Recomputation: intermediate results are not kept for the backward pass, but computed again there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp
from torch.utils.checkpoint import checkpoint


def recomputed(work: Callable[..., Tensor], *inputs: Tensor | None) -> Tensor:
    """``work(*inputs)``; only the inputs are kept for the backward pass.

    torch's own checkpointing does this under ``torch.compile``; run eagerly under ``torch.func.vmap`` (seeds side by
    side) it fails, since tensors of vmap do not live until the backward pass.
    """
    if torch.compiler.is_compiling():
        return checkpoint(work, *inputs, use_reentrant=False, preserve_rng_state=False)
    module = work if isinstance(work, nn.Module) else None
    state: dict[str, Tensor] = {}
    if module is not None:
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def run(*tensors: Any) -> Tensor:
        if module is None:
            return work(*tensors)
        own = dict(zip(state, tensors[len(inputs) :], strict=True))
        return functional_call(module, own, tensors[: len(inputs)])

    return _Recomputed.apply(run, *inputs, *state.values())


class _Recomputed(torch.autograd.Function):
    """A function that gets all its tensors, parameters too, as arguments: only then can it be run again under vmap."""

    generate_vmap_rule = True

    @staticmethod
    def forward(run: Callable[..., Tensor], *tensors: Tensor | None) -> Tensor:
        return run(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.run, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        # A mask has no gradient.
        real = [place for place, tensor in enumerate(tensors) if tensor is not None and tensor.is_floating_point()]

        def of_real(*numbers: Tensor) -> Tensor:
            filled = dict(zip(real, numbers, strict=True))
            return ctx.run(*(filled.get(place, tensor) for place, tensor in enumerate(tensors)))

        with torch.autocast(grad_output.device.type, enabled=False):
            gradients = dict(zip(real, vjp(of_real, *(tensors[place] for place in real))[1](grad_output), strict=True))
        return None, *(gradients.get(place) for place in range(len(tensors)))
