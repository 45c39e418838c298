"""Blocks of the lab's own transformers."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from lab.attention.layers import Attention
from lab.attention.normaliser import check_causal
from lab.models.observable import Observable


class Block(nn.Module):
    """x + attention(x), then x + MLP(x); pre-norm where layer norm is on.

    Args:
        attention: of the width of the residual stream.
        width: of the residual stream.
        hidden: hidden units of the MLP.
        layer_norm: normalise the inputs of attention and MLP.
        activation: of the MLP.
        causal: a token attends only to itself and to earlier tokens.

    Raises:
        ValueError: if the block is causal, and a token would depend on later ones by attention's rule or normaliser.
    """

    def __init__(
        self,
        attention: Attention,
        width: int,
        hidden: int,
        layer_norm: bool,
        activation: type[nn.Module] = nn.ReLU,
        causal: bool = False,
    ) -> None:
        super().__init__()
        if causal:
            check_causal(attention.rule, attention.normaliser)
        self.norm1 = nn.LayerNorm(width) if layer_norm else nn.Identity()
        self.attention = attention
        self.norm2 = nn.LayerNorm(width) if layer_norm else nn.Identity()
        self.mlp = nn.Sequential(nn.Linear(width, hidden), activation(), nn.Linear(hidden, width))
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        """x: [B, N, W] -> [B, N, W]."""
        return self.after_attention(x, self.attention(self.norm1(x), is_causal=self.causal))

    def last(self, x: Tensor) -> Tensor:
        """The last token of :meth:`forward`, [B, 1, W].

        The other tokens are computed only where a recorder listens or queries depend on each other.
        """
        if not self.attention.reads_one_query:
            return self(x)[:, -1:]
        return self.after_attention(x[:, -1:], self.attention.last(self.norm1(x)))

    def after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        """Adds the output of attention to the residual stream x, then that of the MLP; all [B, N, W]."""
        x = x + attended
        return x + self.mlp(self.norm2(x))


class OfBlocks(Observable):
    """A model whose layers are ``blocks``; each block's second norm reads the residual stream right after attention."""

    blocks: Any

    def residual_readers(self) -> list[nn.Module]:
        return [block.norm2 for block in self.blocks]


def last_token(blocks: Any, x: Tensor) -> Tensor:
    """The last token of x after all blocks, [B, N, W] -> [B, 1, W].

    For a model that reads its answer there: the last layer need not compute the other tokens.
    """
    for block in blocks[:-1]:
        x = block(x)
    return blocks[-1].last(x)
