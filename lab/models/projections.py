"""Projections of attention modules of other libraries: which of their rows are W_Q, W_K and W_V.

Shapes: H heads, G heads of keys and values, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

# How the rows of a fused projection follow each other: all of q, all of k, all of v; or group by group, in each the
# queries of its heads, a key and a value (GPT-NeoX); or in a way that tells nothing.
Layout = Literal["parts", "groups", "unknown"]

# Names that modules give to three projections, and to one that is all three.
_SEPARATE = (("q_proj", "k_proj", "v_proj"), ("query", "key", "value"), ("q_lin", "k_lin", "v_lin"), tuple("qkv"))
_FUSED = ("qkv", "c_attn", "qkv_proj", "Wqkv", "query_key_value")
_BY_GROUP = ("query_key_value",)
# Classes whose fused projection has queries, values and keys in blocks.
_IN_BLOCKS = ("CodeGenAttention",)


def width_of_queries(module: nn.Module) -> int | None:
    """Width of the queries, where a linear layer projects them, by themselves or with keys and values of one width."""
    layers = [(name, 1) for name, *_ in _SEPARATE] + [(name, 3) for name in _FUSED]
    widths = (
        one.out_features // parts for name, parts in layers if isinstance(one := getattr(module, name, None), nn.Linear)
    )
    return next(widths, None)


def rows_of_projections(
    module: nn.Module, heads: int, head_dim: int, layout: Layout | None, of: Callable[[Any], Tensor | None]
) -> dict[str, Tensor]:
    """Rows of a module's projections by "q", "k", "v"; {} where they do not tell which are which.

    Args:
        module: the attention module.
        heads: H.
        head_dim: D.
        layout: of a fused projection, as :func:`layout_seen`; None is the usual one of class and name.
        of: gives the part of a layer, its weight or gradient; where it gives None there are none.
    """
    for names in _SEPARATE:
        linears = [getattr(module, name, None) for name in names]
        if all(map(_projects, linears)):
            found = {name: _rows(linear, of) for name, linear in zip("qkv", linears, strict=True)}
            # In a q_proj with more rows (Qwen3-Next), some of them are a gate.
            gated = found["q"] is not None and len(found["q"]) != heads * head_dim
            return {} if gated else {name: part for name, part in found.items() if part is not None}
    for name in _FUSED:
        # With a q_attn beside it (GPT-2's cross-attention), it projects keys and values only.
        if _projects(getattr(module, name, None)) and not hasattr(module, "q_attn"):
            rows = _rows(getattr(module, name), of)
            return {} if rows is None else _cut(rows, heads, head_dim, layout or _usual_layout(module, name))
    return {}


def layout_seen(v: Tensor, heads_at: int, heads: int) -> Layout | None:
    """Layout of a fused projection, by where the values lie in its output; None where they are no view of it.

    A compiler knows no such places.

    Args:
        v: values as a module gives them to attention, [..., M, D] with an axis of G heads.
        heads_at: that axis.
        heads: H.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return None
    H, G, D = heads, v.shape[heads_at], v.shape[-1]
    a_group, a_token = H // G + 2, (H + 2 * G) * D
    if v.stride()[-2:] != (a_token, 1):
        return None
    layouts: dict[tuple[int, int], Layout] = {
        (D, (H + G) * D): "parts",
        (a_group * D, (a_group - 1) * D): "groups",
    }
    # The stride of one head says nothing.
    strides = (v.stride(heads_at),) if G > 1 else (D, a_group * D)
    found = [layouts.get((stride, int(v.storage_offset()) % a_token)) for stride in strides]
    return next((one for one in found if one is not None), "unknown")


def _cut(rows: Tensor, heads: int, head_dim: int, layout: Layout) -> dict[str, Tensor]:
    """Rows of a fused projection by "q", "k", "v"; {} where they do not tell which are which."""
    H, D = heads, head_dim
    of_keys, odd = divmod(len(rows) - H * D, 2)
    if layout == "unknown" or odd or of_keys <= 0 or of_keys % D or H * D % of_keys:
        return {}
    if layout == "parts":
        return dict(zip("qkv", rows.split([H * D, of_keys, of_keys]), strict=True))
    q, k, v = rows.unflatten(0, (of_keys // D, -1, D)).split([H * D // of_keys, 1, 1], dim=1)
    return {"q": q.flatten(0, 2), "k": k.flatten(0, 2), "v": v.flatten(0, 2)}


def _usual_layout(module: nn.Module, name: str) -> Layout:
    """Layout of a fused projection of this name where nothing else tells it."""
    if type(module).__name__ in _IN_BLOCKS:
        return "unknown"
    # timm's CoAtNet and MaxViT say head_first, its TinyViT and LeViT a val_dim; GPT-BigCode is not multi_query.
    by_group = getattr(module, "head_first", False) or hasattr(module, "val_dim")
    by_group = by_group or name in _BY_GROUP or getattr(module, "multi_query", None) is False
    return "groups" if by_group else "parts"


def _projects(layer: Any) -> bool:
    """Tells whether this is a layer with a weight of its own, as no ``nn.Sequential`` is."""
    return isinstance(layer, nn.Module) and isinstance(getattr(layer, "weight", None), Tensor)


def _rows(linear: Any, of: Callable[[Any], Tensor | None]) -> Tensor | None:
    """Result of ``of`` for a projection (its weight or gradient), outputs first."""
    part = of(linear)
    # GPT-2's Conv1D has the outputs in the last dimension.
    return part.t() if part is not None and type(linear).__name__ == "Conv1D" else part
