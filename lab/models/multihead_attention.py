"""``nn.MultiheadAttention``, which torch computes inside one call: its forward pass, written out with its own weights.

Shapes: B batch, H heads, N queries, M keys, D head dimension, W width.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lab.attention.layers import Tap
from lab.console import LabError
from lab.models.replaced_softmax import ReplacedSoftmax, without_replicas, wrapped_since
from lab.models.sdpa_calls import CALL, uses


class OfMultiheadAttention(ReplacedSoftmax):
    """The softmax of an ``nn.MultiheadAttention``, also within ``nn.TransformerEncoderLayer`` and its kin."""

    @staticmethod
    def found_in(model: nn.Module) -> list[nn.Module]:
        found: list[nn.Module] = []
        for module in model.modules():
            if not isinstance(module, nn.MultiheadAttention):
                continue
            if type(module).forward is nn.MultiheadAttention.forward:
                if "forward" in vars(module) and not _is_ours(module):
                    raise LabError(
                        f"the softmax of {type(module).__name__} cannot be replaced: something else was put around its "
                        "forward pass; replace the softmax first"
                    )
                found.append(module)
            elif not uses(module, CALL):
                raise LabError(
                    f"the softmax of {type(module).__name__} cannot be replaced: it changes the forward pass of "
                    f"nn.MultiheadAttention, which torch computes inside one call; write it with F.{CALL}"
                )
        return found

    def state_before(self) -> None:
        return None

    def install(self, before: Any) -> None:
        super().install(before)
        vars(self.owner).update(forward=self.multihead)
        # nn.TransformerEncoderLayer skips its attention module in eval mode, unless that has a hook.
        self._hook = self.owner.register_forward_pre_hook(_nothing)

    def check_uninstall(self) -> None:
        super().check_uninstall()
        if not _is_ours(self.owner):
            raise wrapped_since(self.owner)

    def uninstall(self) -> None:
        super().uninstall()
        self._hook.remove()
        vars(self.owner).pop("forward")

    def _replicate_for_data_parallel(self) -> NoReturn:
        # Of nn.Module; torch.nn.parallel.replicate calls it for each module that it copies.
        raise without_replicas(self.owner)

    def projections(self) -> dict[str, Tensor]:
        return dict(zip("qkv", self._weights(), strict=True))

    def projection_biases(self) -> dict[str, Tensor]:
        owner: Any = self.owner
        return {} if owner.in_proj_bias is None else dict(zip("qkv", owner.in_proj_bias.chunk(3), strict=True))

    def projection_gradients(self) -> dict[str, Tensor]:
        owner: Any = self.owner
        if owner.in_proj_weight is not None:
            whole = owner.in_proj_weight.grad
            return {} if whole is None else dict(zip("qkv", whole.chunk(3), strict=True))
        return {name: part.grad for name, part in self.projections().items() if part.grad is not None}

    def _weights(self) -> tuple[Tensor, ...]:
        """W_Q, W_K and W_V, [W, W], [W, width of keys] and [W, width of values]."""
        owner: Any = self.owner
        if owner.in_proj_weight is not None:
            return tuple(owner.in_proj_weight.chunk(3))
        return owner.q_proj_weight, owner.k_proj_weight, owner.v_proj_weight

    def multihead(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The forward pass of ``nn.MultiheadAttention``, with its arguments and results; weights without dropout."""
        owner: Any = self.owner
        softmax = self.asked
        if query.is_nested:
            return self._of_nested(query, attn_mask), None
        if is_causal and attn_mask is None:
            raise LabError(f"{type(owner).__name__}: is_causal=True tells what attn_mask is: give that, too")
        alike, batched = query is key and key is value, query.dim() == 3
        if not batched:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not owner.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = (self.heads_of(x) for x in self._projected(query, key, value, alike))
        if is_causal and q.shape[2] > 1:
            softmax.mark_causal()
        causal = is_causal and key_padding_mask is None and k.shape[2] == key.shape[1]
        mask = None if causal else self._mask(attn_mask, key_padding_mask, k.shape[2] - key.shape[1])
        dropout = owner.dropout if owner.training else 0.0
        tap = Tap(explicit=True) if need_weights else None
        z_BHND = softmax.of_call(q, k, v, mask, causal, dropout, None, tap=tap)
        weights = None
        if tap is not None:
            weights = tap["weights"].to(z_BHND.dtype)
            weights = weights.mean(1) if average_attn_weights else weights
            if softmax.tap is not None:
                softmax.tap.update(tap)
                softmax.tap.calls += 1
        out = owner.out_proj(z_BHND.transpose(1, 2).flatten(2))
        if not batched:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return out if owner.batch_first else out.transpose(0, 1), weights

    def _projected(self, query: Tensor, key: Tensor, value: Tensor, alike: bool) -> tuple[Tensor, ...]:
        """Queries [B, N, W], keys and values [B, M, W], with the module's own key and value after those of tokens."""
        owner: Any = self.owner
        bias = owner.in_proj_bias
        if alike and owner.in_proj_weight is not None:
            q, k, v = F.linear(query, owner.in_proj_weight, bias).chunk(3, -1)
        else:
            biases = (None, None, None) if bias is None else bias.chunk(3)
            q, k, v = map(F.linear, (query, key, value), self._weights(), biases)
        if owner.bias_k is not None:
            k, v = (torch.cat([x, one.expand(len(x), -1, -1)], 1) for x, one in ((k, owner.bias_k), (v, owner.bias_v)))
        return (q, *(F.pad(x, (0, 0, 0, 1)) for x in (k, v))) if owner.add_zero_attn else (q, k, v)

    def _mask(self, attn_mask: Tensor | None, key_padding_mask: Tensor | None, further: int) -> Tensor | None:
        """The mask of a call, bool or numbers to add, broadcastable to [B, H, N, M].

        The ``further`` keys that the module itself appends are never hidden.
        """
        parts = [] if key_padding_mask is None else [key_padding_mask[:, None, None]]
        if attn_mask is not None:
            parts.append(attn_mask if attn_mask.dim() == 2 else attn_mask.unflatten(0, (-1, self.num_heads)))
        if not parts:
            return None
        # In the words of nn.MultiheadAttention, True hides a key.
        padded = [F.pad(part, (0, further)) for part in parts]
        if all(part.dtype == torch.bool for part in padded):
            return ~reduce(torch.logical_or, padded)
        added = [
            torch.zeros_like(part, dtype=torch.float32).masked_fill(part, float("-inf"))
            if part.dtype == torch.bool
            else part
            for part in padded
        ]
        return reduce(torch.add, added)

    def _of_nested(self, x: Tensor, attn_mask: Tensor | None) -> Tensor:
        """Self-attention of sequences of several lengths, as nn.TransformerEncoder has them in eval mode."""
        lengths = [len(one) for one in x.unbind()]
        whole = x.to_padded_tensor(0.0)
        padding = torch.arange(whole.shape[1], device=x.device) >= torch.tensor(lengths, device=x.device).unsqueeze(1)
        out, _ = self.multihead(whole, whole, whole, padding, need_weights=False, attn_mask=attn_mask)
        return torch.nested.as_nested_tensor([one[:length] for one, length in zip(out, lengths, strict=True)])


def _is_ours(module: nn.Module) -> bool:
    return getattr(vars(module).get("forward"), "__func__", None) is OfMultiheadAttention.multihead


def _nothing(module: nn.Module, inputs: Any) -> None:
    pass
