import pytest

from lab.optim import OptimConfig


def test_learning_rate_scales_with_the_batch() -> None:
    assert OptimConfig(lr=1e-3, lr_reference_batch=512).scaled_lr(256) == pytest.approx(5e-4)
    assert OptimConfig(lr=1e-3).scaled_lr(256) == 1e-3


@pytest.mark.parametrize(
    "options",
    [{"lr": 0}, {"lr": 1, "label_smoothing": 1.0}, {"lr": 1, "weight_decay": -1}, {"lr": 1, "min_lr": -1}],
)
def test_numbers_are_checked(options) -> None:
    with pytest.raises(ValueError, match=r"optim\."):
        OptimConfig(**options)
