"""The single-head set model of max retrieval."""

from __future__ import annotations

from torch import Tensor, nn

from lab.attention.layers import CrossAttention
from lab.datasets.sizes import Size
from lab.models.observable import Observable
from lab.models.softmaxes import RuleFactory, SoftmaxFactory, make_softmaxes


class SetAttention(Observable):
    """One query attends once to a set.

        h_i = psi_x(x_i),   alpha = softmax_i((Q psi_q(q))^T K h_i / tau),   y = phi(sum_i alpha_i V h_i).

    Source: "softmax is not enough", Appendix A.3: two-layer GELU MLPs of width 128, one head of 128 with
    projections for query, key, value and output; psi_x ends in a GELU, psi_q does not, as in its listing.
    What the listing leaves open is as flax has it: LeCun-normal weights, zero biases, GELU's tanh form.

    Args:
        features: numbers that describe an item.
        num_classes: number of labels.
        context: items of the largest set in training; larger sets work as well.
        width: of every layer.
        softmax: makes the rule and the normaliser; None is plain softmax.
    """

    def __init__(
        self,
        features: int = 11,
        num_classes: int = 10,
        context: Size = 16,
        width: Size = 128,
        softmax: SoftmaxFactory | RuleFactory | None = None,
    ) -> None:
        super().__init__()
        gelu = nn.GELU("tanh")
        self.items = nn.Sequential(nn.Linear(features, width), gelu, nn.Linear(width, width), gelu)
        self.query = nn.Sequential(nn.Linear(1, width), gelu, nn.Linear(width, width))
        self.attention = CrossAttention(width, 1, *next(make_softmaxes(softmax, 1, width, context)))
        self.head = nn.Sequential(nn.Linear(width, width), gelu, nn.Linear(width, num_classes))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                _flax_initialisation(module)

    def forward(self, x: tuple[Tensor, Tensor]) -> Tensor:
        """(items [B, n, features], query [B, 1]) -> logits [B, num_classes]."""
        return self.answer(*self.embed(x))

    def embed(self, x: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """(psi_q of the queries [B, 1, W], psi_x of the items [B, n, W]): neither depends on the softmax."""
        items, query = x
        return self.query(query).unsqueeze(1), self.items(items)

    def answer(self, query: Tensor, items: Tensor) -> Tensor:
        """Logits [B, num_classes] of the pair that :meth:`embed` gives."""
        return self.head(self.attention(query, items).squeeze(1))


def _flax_initialisation(layer: nn.Linear) -> None:
    """LeCun normal: N(0, 1 / inputs), cut off at two standard deviations; biases 0."""
    # The cut lowers the standard deviation by this factor; flax makes up for it.
    deviation = layer.in_features**-0.5 / 0.87962566103423978
    nn.init.trunc_normal_(layer.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
    nn.init.zeros_(layer.bias)
