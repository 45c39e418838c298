"""Work on scores in chunks of queries, where no fused kernel does it: memory stays bounded in the number of queries.

Shapes: B batch, H heads, N queries, M keys, D head dimension.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp
from torch.utils.checkpoint import checkpoint

from lab.attention.masks import Causal, Mask, rows_of, written_out
from lab.attention.precision import without_autocast

# Scores held at once: 16 MiB in float32. These stay in a CPU's cache, which makes up for computing them twice: at 1,025
# tokens a step takes 2.3 s, 3.3 s with 2**24, 2.4 s with all at once (four layers).
CHUNK_ELEMENTS = 2**22
# While functional_call runs, a module has other tensors in place of its own, which a second thread must not see.
_ONE_THREAD = threading.RLock()


def over_queries(work: Callable[..., Tensor], q_BHND: Tensor, k_BHMD: Tensor, mask: Mask, *more: Tensor) -> Tensor:
    """``work(q, k, mask, *more)`` for all queries; its result for one query must not depend on the others.

    With more than one chunk, nothing but the results is kept: each chunk is computed again in the backward pass.

    Args:
        work: a function, or a module, whose parameters get gradients, too.
    """
    rows = math.prod(q_BHND.shape[:-2]) * k_BHMD.shape[-2]
    queries, step = q_BHND.shape[-2], max(1, CHUNK_ELEMENTS // max(1, rows))
    if step >= queries:
        return work(q_BHND, k_BHMD, written_out(mask), *more)
    if torch.compiler.is_compiling():
        starts = range(0, queries, step)
        return torch.cat([_checkpointed(work, q_BHND, k_BHMD, mask, start, step, *more) for start in starts], -2)
    module = work if isinstance(work, nn.Module) else None
    with _ONE_THREAD:
        state = {} if module is None else {**dict(module.named_parameters()), **dict(module.named_buffers())}
    causal = mask if isinstance(mask, Causal) else None

    def of_chunk(start: int, q: Tensor, k: Tensor, given: Tensor | None, *tensors: Tensor) -> Tensor:
        inputs = (q, k, rows_of(causal or given, start, start + q.shape[-2]), *tensors[: len(more)])
        if module is None or not state:
            return work(*inputs)
        with _ONE_THREAD:
            return functional_call(module, dict(zip(state, tensors[len(more) :], strict=True)), inputs)

    return _OverQueries.apply(of_chunk, step, q_BHND, k_BHMD, None if causal else mask, *more, *state.values())


class _OverQueries(torch.autograd.Function):
    """``of_chunk(start, q[start:start + step], *tensors)`` for all chunks of queries, one below the other.

    One function for all chunks: if each kept its own result, that would lie where its scores have been, and the next
    chunk would take new memory, N x M numbers in the end (glibc on a CPU). All tensors, parameters too, are arguments:
    only then can it be run again under vmap (seeds side by side), where torch's own checkpointing fails.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(of_chunk: Callable[..., Tensor], step: int, q: Tensor, *tensors: Tensor | None) -> Tensor:
        queries = q.shape[-2]
        z = _filled(None, 0, of_chunk(0, q[..., :step, :], *tensors), queries)
        for start in range(step, queries, step):
            _filled(z, start, of_chunk(start, q[..., start : start + step, :], *tensors), queries)
        return z

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.of_chunk, ctx.step, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        q, *tensors = ctx.saved_tensors
        # A mask has no gradient.
        real = [place for place, tensor in enumerate(tensors) if tensor is not None and tensor.is_floating_point()]
        of_q: Tensor | None = None
        sums: list[Tensor | None] = [None] * len(tensors)
        with without_autocast(q):
            for start in range(0, q.shape[-2], ctx.step):
                stop = start + ctx.step

                def of_real(chunk: Tensor, *numbers: Tensor, start: int = start) -> Tensor:
                    given = dict(zip(real, numbers, strict=True))
                    return ctx.of_chunk(start, chunk, *(given.get(place, t) for place, t in enumerate(tensors)))

                back = vjp(of_real, q[..., start:stop, :], *(tensors[place] for place in real))[1]
                of_rows, *of_others = back(grad_output[..., start:stop, :])
                of_q = _filled(of_q, start, of_rows, q.shape[-2])
                for place, gradient in zip(real, of_others, strict=True):
                    before = sums[place]
                    sums[place] = gradient if before is None else before + gradient
        return None, None, of_q, *sums


def _filled(whole: Tensor | None, start: int, chunk: Tensor, queries: int) -> Tensor:
    """The tensor of all queries with a chunk of them written in, from row ``start`` on; a new one for the first."""
    if whole is None:
        whole = chunk.new_empty(*chunk.shape[:-2], queries, chunk.shape[-1])
    whole[..., start : start + chunk.shape[-2], :] = chunk
    return whole


def _checkpointed(
    work: Callable[..., Tensor], q_BHND: Tensor, k_BHMD: Tensor, mask: Mask, start: int, step: int, *more: Tensor
) -> Tensor:
    """A chunk of queries, by torch's own checkpointing, which a compiler can read."""
    chunk, rows = q_BHND[..., start : start + step, :], rows_of(mask, start, start + step)
    return checkpoint(work, chunk, k_BHMD, rows, *more, use_reentrant=False, preserve_rng_state=False)
