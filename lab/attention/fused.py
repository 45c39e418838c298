"""softmax(q k^T) v by torch's fused kernel, on any device.

Shapes: B batch, H heads, N queries, M keys, D head dimension.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lab.attention import cpu_paths
from lab.attention.masks import Causal, Mask, fully_masked_rows, written_out


def attend(
    q_BHND: Tensor,
    k_BHMD: Tensor,
    v_BHMD: Tensor,
    mask: Mask = None,
    dropout: float = 0.0,
    bias: Tensor | None = None,
) -> Tensor:
    """softmax(q k^T + bias) v by the fused kernel; on a CPU with few keys, and without mask and bias, written out."""
    if bias is not None:
        allowed = written_out(mask)
        added = bias if allowed is None else bias.masked_fill(~allowed, float("-inf"))
        return _kernel(q_BHND, k_BHMD, v_BHMD, added.to(q_BHND.dtype), dropout)
    # The kernel's own causal mask assumes that the queries are the first tokens, not the last: right only for N = M.
    # Written as a choice: under torch.compile with lengths that vary, the comparison is no bool to the kernel.
    is_causal = True if isinstance(mask, Causal) and mask.queries == mask.keys else False  # noqa: SIM210
    if mask is None and not dropout and cpu_paths.few_keys(q_BHND, k_BHMD):
        return cpu_paths.softmax_of_few_keys(q_BHND, k_BHMD, v_BHMD)
    given = None if is_causal else written_out(mask)
    return _kernel(q_BHND, k_BHMD, v_BHMD, given, dropout, is_causal)


def _kernel(
    q_BHND: Tensor,
    k_BHMD: Tensor,
    v_BHMD: Tensor,
    given: Tensor | None,
    dropout: float = 0.0,
    is_causal: bool = False,
) -> Tensor:
    """The fused kernel, under a mask of bool or a bias; z is 0 for a query that may attend to nothing."""
    z = F.scaled_dot_product_attention(q_BHND, k_BHMD, v_BHMD, given, dropout, is_causal, scale=1.0)
    if given is None or _gives_fully_masked_rows_zero(z.device):
        return z
    return z.masked_fill(fully_masked_rows(given if given.dtype == torch.bool else given > float("-inf")), 0.0)


def _gives_fully_masked_rows_zero(device: torch.device) -> bool:
    """False on a GPU: cuDNN's kernel, the one for 16 bit there, gives a query without keys other numbers."""
    return device.type == "cpu"
