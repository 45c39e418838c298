"""Gradient scaling: W_Q, W_K and W_V get gradients of the same size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from lab.console import LabError
from lab.models.observable import attention_layers_of
from lab.models.replaced_softmax import ReplacedSoftmax


@dataclass(frozen=True)
class GradScaling:
    """Multiplies the gradient of each of W_Q, W_K and W_V by (target) / (its own mean |gradient|).

    With m_b the mean absolute gradient of block b in {Q, K, V}, of a layer or of one head of it,

        to = "mean":  g_b <- g_b (m_Q + m_K + m_V) / 3 / m_b     (the mean over the whole QKV weight),
        to = "value": g_b <- g_b m_V / m_b.

    A block whose gradient is zero throughout stays as it is.

    Source: Eureka-moments in Transformers, section 5 and A.4 ("W_QKV grad scaling"); as run: per layer, to the
    mean (docs/published_runs.md, "Temperatures").

    Args:
        per: over what a block's mean is taken, a whole "layer" or each "head" of it.
        to: the size that all three get.
    """

    per: Literal["layer", "head"] = "layer"
    to: Literal["mean", "value"] = "mean"

    def check(self, model: nn.Module) -> None:
        """Checks that the gradients of ``model`` can be scaled.

        Raises:
            LabError: if the model is of another library, whose gradients are not always views of W_Q, W_K and W_V.
        """
        for layer in attention_layers_of(model):
            if isinstance(layer, ReplacedSoftmax):
                raise LabError(
                    f"gradient scaling knows the lab's own models, not {type(layer.owner).__name__}: leave "
                    "intervention out"
                )

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> None:
        """Scales the gradients of ``model`` in place; layers without all three gradients are passed over.

        Raises:
            LabError: as :meth:`check`.
        """
        self.check(model)
        for layer in attention_layers_of(model):
            gradients = layer.projection_gradients()
            if len(gradients) == 3:
                self._scale(gradients, layer.num_heads)

    def _scale(self, gradients: dict[str, Tensor], heads: int) -> None:
        groups = heads if self.per == "head" else 1
        # The rows of W_b are ordered by head.
        blocks = {name: gradient.view(groups, -1) for name, gradient in gradients.items()}
        means = {name: block.abs().mean(1, keepdim=True) for name, block in blocks.items()}
        target = means["v"] if self.to == "value" else sum(means.values()) / len(means)
        for name, block in blocks.items():
            mean = means[name]
            block.mul_(torch.where(mean > 0, target / mean, torch.ones_like(mean)))
