"""The transformer of in-context learning: images by a ResNet, labels by an embedding, GPT-2 over both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from pydantic import PositiveFloat
from timm.models.resnet import BasicBlock, Bottleneck, downsample_conv
from torch import Tensor, nn

from lab.attention.layers import Attention
from lab.datasets.sizes import Size
from lab.models.blocks import Block, OfBlocks, last_token
from lab.models.softmaxes import RuleFactory, SoftmaxFactory, make_softmaxes

BLOCKS: dict[str, type[BasicBlock] | type[Bottleneck]] = {"basic": BasicBlock, "bottleneck": Bottleneck}


class ResNet(nn.Sequential):
    """A ResNet for grey images: a 7x7 convolution and a pooling, each of which halves them, then groups of blocks.

    The blocks are timm's (He et al. 2016); the first block of every group but the first halves the image.

    Args:
        channels: output channels of each group.
        blocks: number of blocks of each group.
        block: "basic" has two 3x3 convolutions; "bottleneck" has three, of 1x1, 3x3 and 1x1, and a quarter of the
            channels within.
        stem: channels of the first convolution.

    Raises:
        ValueError: if ``channels`` and ``blocks`` are empty or not of one length, or 4 does not divide a bottleneck's
            channels.
    """

    def __init__(self, channels: Sequence[int], blocks: Sequence[int], block: str, stem: int) -> None:
        kind = BLOCKS[block]
        if not channels or len(channels) != len(blocks):
            raise ValueError(
                f"model.channels={list(channels)} and model.blocks={list(blocks)} must have the same length, at least 1"
            )
        if odd := [width for width in channels if width % kind.expansion]:
            raise ValueError(f"model.block={block} has a quarter of the channels inside, so 4 must divide {odd[0]}")
        super().__init__(
            nn.Conv2d(1, stem, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(stem),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
            *_groups(channels, blocks, kind, stem),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        # Channels last takes a third of the time on a CPU, at 28 pixels.
        self.to(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        """x: [B, 1, S, S] -> the mean over pixels, [B, channels]."""
        return super().forward(x).mean((-2, -1))


def _groups(channels: Sequence[int], blocks: Sequence[int], kind: Any, stem: int) -> Iterator[nn.Module]:
    given = stem
    for group, (width, count) in enumerate(zip(channels, blocks, strict=True)):
        for place in range(count):
            stride = 2 if group and not place else 1
            shortcut = None if stride == 1 and given == width else downsample_conv(given, width, 1, stride)
            yield kind(given, width // kind.expansion, stride, shortcut)
            given = width


class InContextTransformer(OfBlocks):
    """GPT-2 that reads images and labels in turn, then one more image, and predicts its label.

    The tokens are image, label, image, label, ..., image: images encoded by a ResNet and embedded labels, plus fixed
    sinusoidal positions. Pre-norm blocks with a causal mask follow; the label is read at the last image.

    Source: Eureka-moments in Transformers, A.19 (GPT-2 of 12 layers, width 64, 8 heads; ResNet-18 of 16, 32, 32 and 64
    channels); Chan et al. 2022, on which it is based: positions, label embedding N(0, 0.02) and stem. Neither
    source gives the weights: they are N(0, 0.02) as in GPT-2, without its scaling of residual layers.

    Args:
        pairs: images with a label before the last.
        num_classes: number of labels.
        channels: output channels of each group of the ResNet; the last is the width of the transformer.
        blocks: number of blocks of each group.
        block: "basic", as in ResNet-18, or "bottleneck", as in Chan et al.
        stem: channels of the first convolution.
        layers, heads: of the transformer; the heads must divide the width.
        mlp_ratio: hidden units of an MLP over the width.
        max_time: positions are sines of 1 to ``max_time`` tokens a radian.
        init: "gpt2", every matrix of the transformer with a standard deviation of 0.02; or "fan_in", with a variance of
            1 / inputs, which keeps the scale of signals at any width.
        label_std: standard deviation of the label embedding at the start, truncated at two of them. That of positions
            is 0.7: with the published 0.02, labels at first hardly differ.
        softmax: makes the rule and the normaliser of a layer; None is plain softmax.

    Raises:
        ValueError: if the heads do not divide the width, or the ResNet's options do not fit together.
    """

    answer_token = -1
    position: Tensor

    def __init__(
        self,
        pairs: int = 8,
        num_classes: int = 1623,
        channels: Sequence[Size] = (16, 32, 32, 64),
        blocks: Sequence[Size] = (2, 2, 2, 2),
        block: Literal["basic", "bottleneck"] = "basic",
        stem: Size = 64,
        layers: Size = 12,
        heads: Size = 8,
        mlp_ratio: Size = 4,
        max_time: Size = 30,
        init: Literal["gpt2", "fan_in"] = "gpt2",
        label_std: PositiveFloat = 0.02,
        softmax: SoftmaxFactory | RuleFactory | None = None,
    ) -> None:
        super().__init__()
        self.encoder = ResNet(channels, blocks, block, stem)
        width, tokens = channels[-1], 2 * pairs + 1
        if width % heads:
            raise ValueError(f"model.heads={heads} does not divide the width, the last of model.channels, {width}")
        self.label = nn.Embedding(num_classes, width)
        self.register_buffer("position", sinusoids(tokens, width, max_time), persistent=False)
        softmaxes = make_softmaxes(softmax, heads, width // heads, tokens)
        self.blocks = nn.Sequential(
            *[
                Block(
                    Attention(width, heads, *next(softmaxes), qkv_bias=True),
                    width,
                    mlp_ratio * width,
                    layer_norm=True,
                    activation=nn.GELU,
                    causal=True,
                )
                for _ in range(layers)
            ]
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, num_classes)
        nn.init.trunc_normal_(self.label.weight, std=label_std, a=-2 * label_std, b=2 * label_std)
        for module in [*self.blocks.modules(), self.head]:
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02 if init == "gpt2" else module.in_features**-0.5)
                nn.init.zeros_(module.bias)

    def forward(self, x: tuple[Tensor, Tensor]) -> Tensor:
        """(images [B, P + 1, 1, S, S], labels [B, P]) -> logits [B, num_classes] of the label of the last image."""
        images, labels = x
        seen = self.encoder(images.flatten(0, 1)).unflatten(0, images.shape[:2])
        pairs = torch.stack([seen[:, :-1], self.label(labels)], dim=2).flatten(1, 2)
        states = torch.cat([pairs, seen[:, -1:]], dim=1) + self.position
        return self.head(self.norm(last_token(self.blocks, states)[:, 0]))


def sinusoids(tokens: int, width: int, max_time: float) -> Tensor:
    """Fixed positional encodings [N, W]: sines, then cosines, of n / max_time^(2 i / W) for token n.

    Source: Vaswani et al. 2017, section 3.5, with ``max_time`` in place of 10,000.
    """
    pace = max_time ** (-torch.arange(0, width, 2) / width)
    angle = torch.arange(tokens).unsqueeze(1) * pace
    return torch.cat([angle.sin(), angle.cos()], dim=1)[:, :width]
