"""What PyTorch keeps private does what the lab takes it for."""

from __future__ import annotations

import torch

from lab.attention.torch_internals import softmax_backward


def test_the_gradient_of_softmax_is_autograds() -> None:
    logits = torch.randn(2, 3, 5, 7, dtype=torch.float64, requires_grad=True)
    weights, slope = logits.softmax(-1), torch.randn(2, 3, 5, 7, dtype=torch.float64)
    (want,) = torch.autograd.grad(weights, logits, slope)
    torch.testing.assert_close(softmax_backward(slope, weights.detach()), want, rtol=1e-14, atol=1e-14)
