"""The small transformer of the reasoning task."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from lab.attention.layers import Attention
from lab.datasets.sizes import Size
from lab.models.blocks import Block, OfBlocks, last_token
from lab.models.softmaxes import RuleFactory, SoftmaxFactory, make_softmaxes


class Reasoner(OfBlocks):
    """Transformer that reads the tokens "a b c d =" and answers at the last one.

    Source: Eureka-moments in Transformers, A.16 (width 16, 4 heads of 4, 64 hidden units, learned positions), which
    names neither layer norm nor an initialisation. This class has no layer norm by default, as in Nanda et al. 2023,
    whose weight decay A.16 follows; ``experiment=reasoning`` turns it on. Without layer
    norm, N(0, 1/width) embeddings and torch's default for all else made the Eureka-moment of NormSoftmax later (seed 0,
    learning rate 5e-3: epoch 1,660 instead of 530 to 630).

    Args:
        tokens: size of the vocabulary, "=" included.
        context: length of an input.
        num_classes: number of answers.
        width: width of the residual stream.
        heads: heads a layer; must divide the width.
        hidden: hidden units of the MLP.
        depth: number of layers.
        layer_norm: pre-norm layer normalisation.
        init: None, torch's default, with positions N(0, 1) as token embeddings are; or "width", every weight and
            position N(0, 1 / width), the unembedding N(0, 1 / tokens), biases 0 (Nanda et al. 2023).
        softmax: makes the rule and the normaliser of a layer; None is plain softmax.

    Raises:
        ValueError: if the heads do not divide the width.
    """

    answer_token = -1

    def __init__(
        self,
        tokens: int = 12,
        context: int = 5,
        num_classes: int = 11,
        width: Size = 16,
        heads: Size = 4,
        hidden: Size = 64,
        depth: Size = 1,
        layer_norm: bool = False,
        init: Literal["width"] | None = None,
        softmax: SoftmaxFactory | RuleFactory | None = None,
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"model.heads={heads} does not divide model.width={width}")
        softmaxes = make_softmaxes(softmax, heads, width // heads, context)
        self.token = nn.Embedding(tokens, width)
        # As large as the token embedding, since only position tells the four numbers apart.
        self.position = nn.Parameter(torch.randn(context, width))
        self.blocks = nn.Sequential(
            *[
                Block(Attention(width, heads, *next(softmaxes), proj_bias=False), width, hidden, layer_norm)
                for _ in range(depth)
            ]
        )
        self.norm = nn.LayerNorm(width) if layer_norm else nn.Identity()
        self.head = nn.Linear(width, num_classes, bias=False)
        if init == "width":
            self._init_by_width(width, tokens)

    def forward(self, x: Tensor) -> Tensor:
        """x: [B, context] int64 -> logits [B, num_classes].

        Raises:
            ValueError: if inputs have another number of tokens.
        """
        context = self.position.shape[0]
        if x.shape[1] != context:
            raise ValueError(f"inputs of {x.shape[1]} tokens in a model that is made for context={context}")
        first = self.blocks[0]
        if len(self.blocks) == 1 and first.attention.reads_one_query:
            state = self._only_layer(first, x)
        else:
            state = last_token(self.blocks, self.token(x) + self.position)
        return self.head(self.norm(state[:, 0]))

    def _init_by_width(self, width: int, tokens: int) -> None:
        """Draws all weights anew, except those of rules and normalisers; those of layer norms stay 1."""
        kept = self.softmax_parameters()
        for name, parameter in self.named_parameters():
            if name in kept:
                continue
            if name.endswith(".bias"):
                nn.init.zeros_(parameter)
            elif "norm" not in name:
                nn.init.normal_(parameter, std=(tokens if name == "head.weight" else width) ** -0.5)

    def _only_layer(self, block: Block, x: Tensor) -> Tensor:
        """Computes ``block.last`` of embedded tokens, [B, 1, W], from a table of all pairs of position and token.

        The projections of a first layer depend on position N and token T alone: 5 x 12 rows are projected and then
        picked, instead of 5 x 4,392. Picking is a product with one-hot columns, so that samples lie innermost in memory
        and all arithmetic of narrow heads runs along them.
        """
        tokens = torch.arange(self.token.num_embeddings, device=x.device)
        table_NTW = self.token.weight + self.position[:, None]
        normed = block.norm1(table_NTW)
        picked_NTB = (x.t().unsqueeze(1) == tokens[:, None]).to(table_NTW.dtype)
        # Two products instead of four: each reads its one-hot columns once.
        k_NWB, v_NWB = (block.attention.project("kv", normed).transpose(1, 2) @ picked_NTB).chunk(2, 1)
        of_last_TW = torch.cat([block.attention.project("q", normed[-1]), table_NTW[-1]], 1)
        q_WB, last_WB = (of_last_TW.t() @ picked_NTB[-1]).chunk(2)
        attended = block.attention.attend_projected(
            q_WB.t().unsqueeze(1), k_NWB.permute(2, 0, 1), v_NWB.permute(2, 0, 1)
        )
        return block.after_attention(last_WB.t().unsqueeze(1), attended)
