"""The compact ViT of the vision tasks: timm's VisionTransformer under any softmax."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Literal

import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat
from timm.layers import PatchEmbed
from timm.models import register_model
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from lab.attention.layers import Attention
from lab.datasets.sizes import Size
from lab.models.blocks import OfBlocks
from lab.models.softmaxes import LayerSoftmax, RuleFactory, SoftmaxFactory, make_softmaxes


class LinearPatchEmbed(PatchEmbed):
    """timm's patch embedding as one matrix product, with the same parameters and results.

    With seeds trained together, timm's convolution becomes a grouped one, which on a CPU takes longer than one pass for
    each seed.
    """

    def forward(self, x: Tensor) -> Tensor:
        """x: [B, C, H, W] -> [B, N, width], patches in row-major order.

        Raises:
            ValueError: if the images are not of the size that the model was made for.
        """
        if tuple(x.shape[-2:]) != self.img_size:
            raise ValueError(f"the model was made for images of {self.img_size} pixels, got {tuple(x.shape[-2:])}")
        (rows, columns), (height, width) = self.grid_size, self.patch_size
        # [B, C, rows, height, columns, width] -> [B, N, C height width], the order of a filter's weights.
        patches = x.unflatten(2, (rows, height)).unflatten(4, (columns, width)).permute(0, 2, 4, 1, 3, 5)
        return F.linear(patches.flatten(3).flatten(1, 2), self.proj.weight.flatten(1), self.proj.bias)


class ReadBlock(Block):
    """timm's block, of which the first token (CLS) can be computed without the others."""

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, first: bool = False
    ) -> Tensor:
        """x: [B, N, W] -> [B, N, W]; with ``first``, where ``reads_first_alone``, its first token alone, [B, 1, W]."""
        normed = self.norm1(x)
        if first:
            attended = self.attn(normed, attn_mask=attn_mask, is_causal=is_causal, first=True)
            return self.after_attention(x[:, :1], attended)
        return self.after_attention(x, self.attn(normed, attn_mask=attn_mask, is_causal=is_causal))

    @property
    def reads_first_alone(self) -> bool:
        """True where the first token can be computed without the others."""
        return isinstance(self.attn, Attention) and self.attn.reads_any_query

    def after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        """Adds the output of attention to the residual stream x, then that of the MLP; all [B, N, W]."""
        x = x + self.drop_path1(self.ls1(attended))
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))


class NormalisedStreamBlock(ReadBlock):
    """The same, but what the MLP's norm makes of the residual stream takes the stream's place.

    Source: ``TransformerEncoderLayer`` in the code that Hassani et al. 2021 published.
    """

    def after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        """As in :class:`ReadBlock`."""
        x = self.norm2(x + self.drop_path1(self.ls1(attended)))
        return x + self.drop_path2(self.ls2(self.mlp(x)))


class CompactViT(OfBlocks, VisionTransformer):
    """Pre-norm ViT with learned positions and a CLS head; 3,750,666 parameters by default.

    Source: Eureka-moments in Transformers, section 4 ("Models") and Table 3; Hassani et al. 2021;
    docs/published_runs.md.

    Args:
        image_size: side of the canvas in pixels.
        patch_size: side of a patch in pixels; must divide the canvas.
        depth: number of layers.
        heads: heads a layer.
        head_dim: dimension of a head; the width is heads x head_dim.
        mlp_ratio: hidden width of the MLP over the width.
        num_classes: number of labels.
        drop_path_rate: stochastic depth of the last layer, rising linearly from 0 at the first.
        qkv_bias: bias of the query, key and value projections.
        init: "timm": every linear layer with a standard deviation of 0.02, the patch embedding by torch's default for
            convolutions; "vit_lite", as in the code of Hassani et al. 2021: the same, but the patch embedding with a
            variance of 2 / inputs, six times timm's; "fan_in": all of them with a variance of 1 / inputs, which
            keeps the scale of signals at any width (at a width of 64, timm's weights start six times smaller); or
            "torch": weights and biases as torch leaves them, a variance of 1 / (3 inputs), as in a ViT that is written
            down without a start of its own.
        position_std: standard deviation of the position embedding at the start (timm: 0.02; Hassani et al. 2021: 0.2).
        normalised_stream: the residual stream goes on from attention as the MLP's norm leaves it, as in the code of
            Hassani et al. 2021, so that the first positions and patches do not outweigh what attention adds.
        query_key_std: standard deviation of W_Q and W_K at the start; None leaves them to ``init``. Small values
            make attention locally uniform whatever ``init``.
        softmax: makes the rule and the normaliser of a layer; None is plain softmax.

    Raises:
        ValueError: if the patches do not fit the canvas.
    """

    answer_name = "the answer's token (CLS)"

    def __init__(
        self,
        image_size: int = 56,
        patch_size: Size = 4,
        depth: Size = 7,
        heads: Size = 4,
        head_dim: Size = 64,
        mlp_ratio: PositiveFloat = 2.0,
        num_classes: int = 10,
        drop_path_rate: Annotated[float, Field(ge=0, lt=1)] = 0.1,
        qkv_bias: bool = False,
        init: Literal["timm", "vit_lite", "fan_in", "torch"] = "timm",
        position_std: NonNegativeFloat = 0.02,
        normalised_stream: bool = False,
        query_key_std: PositiveFloat | None = None,
        softmax: SoftmaxFactory | RuleFactory | None = None,
    ) -> None:
        if image_size % patch_size:
            raise ValueError(f"model.patch_size={patch_size} does not divide the canvas of {image_size} pixels")
        tokens = (image_size // patch_size) ** 2 + 1  # CLS
        super().__init__(
            img_size=image_size,
            patch_size=patch_size,
            depth=depth,
            num_heads=heads,
            embed_dim=heads * head_dim,
            mlp_ratio=mlp_ratio,
            num_classes=num_classes,
            drop_path_rate=drop_path_rate,
            qkv_bias=qkv_bias,
            norm_layer=partial(nn.LayerNorm, eps=1e-6),
            embed_layer=LinearPatchEmbed,
            block_fn=NormalisedStreamBlock if normalised_stream else ReadBlock,
            attn_layer=_attention_with(make_softmaxes(softmax, heads, head_dim, tokens)),
        )
        if init == "fan_in":
            for module in self.modules():
                if isinstance(module, nn.Linear | nn.Conv2d):
                    nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
        elif init == "torch":
            for module in self.modules():
                if isinstance(module, nn.Linear | nn.Conv2d):
                    module.reset_parameters()
        elif init == "vit_lite":
            nn.init.kaiming_normal_(self.patch_embed.proj.weight)
        if position_std != 0.02:
            assert self.pos_embed is not None
            nn.init.normal_(self.pos_embed, std=position_std)
        if query_key_std is not None:
            for layer in self.attention_layers():
                for name in "qk":
                    nn.init.normal_(layer.projections()[name], std=query_key_std)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """x: [B, 3, height, width] -> logits [B, classes].

        Of the last layer only the CLS token is computed where the head reads no other: a tenth of all arithmetic less.
        A forward hook there sees [B, 1, W]. All tokens are computed where a recorder listens, where queries depend on
        each other, and by timm's ``forward_features`` and ``forward_intermediates``.
        """
        *early, last = self.blocks
        head_reads_cls = self.global_pool == "token" and self.attn_pool is None
        plain = attn_mask is None and not is_causal and not self.grad_checkpointing
        if not (plain and head_reads_cls and getattr(last, "reads_first_alone", False)):
            return super().forward(x, attn_mask=attn_mask, is_causal=is_causal)
        # As timm's forward_features, which has no name of its own for what comes before the blocks.
        x = self.norm_pre(self.patch_drop(self._pos_embed(self.patch_embed(x))))
        for block in early:
            x = block(x)
        return self.forward_head(self.norm(last(x, first=True)))

    @property
    def token_grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        rows, columns = self.patch_embed.grid_size
        return rows, columns

    def no_weight_decay(self) -> set[str]:
        """timm's position embedding and CLS token, and what rules and normalisers learn."""
        return set(VisionTransformer.no_weight_decay(self)) | self.softmax_parameters()


def _attention_with(softmaxes: Iterator[LayerSoftmax]) -> type[nn.Module]:
    """A class that timm's blocks make their attention layers from, each with the next softmax."""

    class DressedAttention(nn.Module):
        # timm wants a class. Its instances are plain Attention, so that a model can be pickled.
        def __new__(cls, dim: int, num_heads: int, **options: Any) -> Any:
            known = ("qkv_bias", "proj_bias", "proj_drop")
            return Attention(dim, num_heads, *next(softmaxes), **{k: options[k] for k in known if k in options})

    return DressedAttention


@register_model
def compact_vit(pretrained: bool = False, **options: Any) -> CompactViT:
    """``timm.create_model("compact_vit", depth=4)``."""
    if pretrained:
        raise ValueError("compact_vit has no pretrained weights: call create_model with pretrained=False")
    # timm adds these to every call; they have no meaning here.
    for name in ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"):
        options.pop(name, None)
    return CompactViT(**options)
