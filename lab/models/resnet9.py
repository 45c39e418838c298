"""ResNet9, the baseline without attention."""

from __future__ import annotations

from timm.layers import ConvNormAct
from torch import Tensor, nn

from lab.datasets.sizes import Size
from lab.models.observable import Observable


class Residual(nn.Module):
    """x + two 3x3 convolutions of x."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(ConvNormAct(width, width, 3), ConvNormAct(width, width, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class ResNet9(Observable):
    """Eight convolutions and a linear head: w, 2w, residual, 4w, 8w, residual; 3.7 million parameters by default.

    Source: Eureka-moments in Transformers, section 4 ("Models": a ResNet of 9 layers with a comparable number of
    parameters; no more is told) and Tables 4 and 5; the plan is that of the ResNet9 known from DAWNBench.

    Args:
        image_size: side of the canvas in pixels; at least 8, for three poolings.
        num_classes: number of labels.
        width: channels w of the first convolution.

    Raises:
        ValueError: if the canvas is too small.
    """

    def __init__(self, image_size: int = 56, num_classes: int = 10, width: Size = 48) -> None:
        super().__init__()
        if image_size < 8:
            raise ValueError(f"a ResNet9 needs a canvas of 8 pixels or more, got {image_size}")
        pool = nn.MaxPool2d(2)
        self.body = nn.Sequential(
            ConvNormAct(3, width, 3),
            ConvNormAct(width, 2 * width, 3),
            pool,
            Residual(2 * width),
            ConvNormAct(2 * width, 4 * width, 3),
            pool,
            ConvNormAct(4 * width, 8 * width, 3),
            pool,
            Residual(8 * width),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(8 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """x: [B, 3, image_size, image_size] -> logits [B, num_classes]."""
        return self.head(self.body(x))
