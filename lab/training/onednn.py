"""Float32 matrix products of linear layers by oneDNN, on processors where PyTorch's default is slow.

PyTorch multiplies float32 matrices with MKL, which uses AVX2 on AMD's processors even if they have AVX-512, and so is
half as fast there as it could be (results/benchmark). PyTorch includes oneDNN too, which uses the instructions that the
processor has, but calls it for 16-bit products only. The results differ by rounding alone.

Only this file uses PyTorch's private operator for oneDNN. ``tests/lab/training/test_onednn.py`` compares it with
``F.linear``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

# From this many multiplications on, the operator's overhead of some 0.1 ms is small beside the time that it saves.
_WORTHWHILE = 2**26


def quicker(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Tells whether PyTorch has both libraries and Linux reports an AMD processor with AVX-512."""
    try:
        told = cpuinfo.read_text()
    except OSError:
        return False
    both = torch.backends.mkl.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return both and "AuthenticAMD" in told and "avx512f" in told


def use_onednn(model: nn.Module) -> None:
    """Makes every plain ``nn.Linear`` of a model multiply by oneDNN, if that is quicker on this processor.

    Parameters, names and state dict stay as they are.
    """
    if quicker():
        for module in model.modules():
            if type(module) is nn.Linear:
                module.__class__ = Linear


class Linear(nn.Linear):
    """``nn.Linear`` that computes large float32 products on a CPU by oneDNN, forward and backward."""

    def forward(self, x: Tensor) -> Tensor:
        large = x.numel() * self.out_features >= _WORTHWHILE
        plain = x.dtype == self.weight.dtype == torch.float32 and x.device.type == "cpu"
        if large and plain and not torch.is_autocast_enabled("cpu"):
            found: Tensor = product(x, self.weight, self.bias)
            return found
        return super().forward(x)


@torch.library.custom_op("eureka_lab::linear", mutates_args=(), device_types="cpu")
def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x weight^T + bias in float32, [..., K] and [N, K] -> [..., N]: ``F.linear`` by oneDNN, with its derivatives."""
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return found


@product.register_fake
def _shape(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@product.register_vmap
def _side_by_side(
    info: Any, axes: tuple[int | None, ...], x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, int]:
    x, weight = (
        one[None] if axis is None else one.movedim(axis, 0) for one, axis in zip((x, weight), axes[:2], strict=True)
    )
    found = x.flatten(1, -2) @ weight.transpose(1, 2)
    if bias is not None:
        found = found + (bias if axes[2] is None else bias.movedim(axes[2], 0)[:, None])
    return found.unflatten(1, x.shape[1:-1]), 0


def _backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    of_x, of_weight, of_bias = ctx.needs_input_grad
    rows = grad_output.flatten(0, -2)
    return (
        product(grad_output, weight.t(), None) if of_x else None,
        over_rows(rows, x.flatten(0, -2)) if of_weight else None,
        rows.sum(0) if of_bias else None,
    )


@torch.library.custom_op("eureka_lab::over_rows", mutates_args=(), device_types="cpu")
def over_rows(grad_output: Tensor, x: Tensor) -> Tensor:
    """grad_output^T x in float32, [M, N] and [M, K] -> [N, K]: the gradient of a weight, with its derivatives.

    For oneDNN it is the gradient of the kernel of a convolution of one picture of M places with a kernel of one place.
    Its product of matrices would need a transposed copy of one of them.
    """
    (N, K), ones = (grad_output.shape[1], x.shape[1]), [1, 1]
    # As views of [1, M, 1, N], which are channels last: a plain transposed view would be copied.
    pictures = [one.contiguous()[None, :, None].permute(0, 3, 1, 2) for one in (grad_output, x)]
    kernel = x.new_empty(N, K, 1, 1)
    only_kernel = [False, True, False]
    _, found, _ = torch.ops.aten.convolution_backward(
        *pictures, kernel, None, ones, [0, 0], ones, False, [0, 0], 1, only_kernel
    )
    return found.reshape(N, K)


@over_rows.register_fake
def _shape_over_rows(grad_output: Tensor, x: Tensor) -> Tensor:
    return x.new_empty(grad_output.shape[1], x.shape[1])


@over_rows.register_vmap
def _over_rows_side_by_side(info: Any, axes: tuple[int | None, int | None], *given: Tensor) -> tuple[Tensor, int]:
    grad_output, x = (
        one[None] if axis is None else one.movedim(axis, 0) for one, axis in zip(given, axes, strict=True)
    )
    return grad_output.transpose(1, 2) @ x, 0


def _backward_over_rows(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
    rows, x = ctx.saved_tensors
    of_rows, of_x = ctx.needs_input_grad
    return product(x, grad_output, None) if of_rows else None, product(rows, grad_output.t(), None) if of_x else None


over_rows.register_autograd(
    _backward_over_rows, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
)
product.register_autograd(_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs[:2]))
