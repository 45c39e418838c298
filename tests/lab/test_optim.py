import pytest
import torch

from lab.config.check import check_arguments
from lab.console import LabError
from lab.training.optim import OptimConfig


def test_learning_rate_scales_with_the_batch() -> None:
    assert OptimConfig(lr=1e-3, lr_reference_batch=512).scaled_lr(256) == pytest.approx(5e-4)
    assert OptimConfig(lr=1e-3).scaled_lr(256) == 1e-3


@pytest.mark.parametrize(
    "options",
    [{"lr": 0}, {"lr": 1, "label_smoothing": 1.0}, {"lr": 1, "weight_decay": -1}, {"lr": 1, "min_lr": -1}],
)
def test_numbers_are_checked(options) -> None:
    with pytest.raises(LabError, match=r"optim\."):
        check_arguments(OptimConfig, options, "optim")


@pytest.mark.parametrize(
    ("name", "options", "scales_loss", "fused"),
    [
        ("adamw", {}, False, True),
        ("sgd", {}, False, True),
        ("adamw", {}, True, None),
        ("adamw", {"foreach": True}, False, None),
        ("adamw", {"fused": False}, False, False),
        ("lookahead_adamw", {}, False, None),
        ("nadam", {}, False, None),
    ],
)
def test_optimisers_are_fused_where_they_can_be(name, options, scales_loss, fused) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = OptimConfig(lr=1.0, name=name, options=options).optimizer([{"params": [weight]}], 1, scales_loss)
    assert optimizer.param_groups[0].get("fused") is fused
    weight.grad = torch.ones(3)
    optimizer.step()
    assert (weight < 1).all()


@pytest.mark.parametrize(("warmup_epochs", "rates"), [(0, [1.0, 1.0, 1.0, 1.0]), (2, [0.1, 0.55, 1.0, 1.0])])
def test_a_rate_that_stays_is_warmed_up_too(warmup_epochs, rates) -> None:
    config = OptimConfig(lr=1.0, schedule="none", warmup_lr=0.1, warmup_epochs=warmup_epochs)
    optimizer = config.optimizer([{"params": [torch.nn.Parameter(torch.ones(3))]}], 1)
    scheduler = config.scheduler(optimizer, epochs=4)
    seen = []
    for epoch in range(4):
        if scheduler is not None:
            scheduler.step(epoch)
        seen.append(optimizer.param_groups[0]["lr"])
    assert seen == pytest.approx(rates)
