"""The local learning coefficient: right where it is known, and training is as it would be without it."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import assert_same_weights, newest, train_in
from torch import nn

from lab.console import LabError
from lab.observation.gradients import SeededModule, TrainingState
from lab.observation.learning_coefficient import Sampling, learning_coefficient
from lab.training.inspection import inspect

pytest.importorskip("devinterp", reason="devinterp is not installed: pip install -e '.[devinterp]'")

SMALL = ("experiment=reasoning_small", "data.numbers=4", "trainer.max_epochs=4", "threads=1")
WATCHED = (
    "callbacks=[reasoning,learning_coefficient]",
    *(f"callbacks.learning_coefficient.{one}" for one in ("every_n_epochs=2", "chains=2", "burn_in=1", "draws=3")),
)


class Bowl(SeededModule):
    """A loss of |w|^2 / 2 at its minimum, where the coefficient is half the number of weights."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.model = nn.Linear(size, 1, bias=False)
        nn.init.zeros_(self.model.weight)

    def seed_step(self, epoch: int, batch_idx: int) -> None:
        torch.manual_seed(0)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return self.model.weight.square().sum() / 2


class Nothing:
    """Data of 1,000 samples in one batch."""

    samples_per_batch = 1000

    def train_dataloader(self) -> list[None]:
        return [None]

    def draw_train(self, epoch: int, step: int) -> torch.Tensor:
        return torch.zeros(1)

    def on_after_batch_transfer(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        return batch


def test_a_quadratic_loss_has_half_as_much_as_it_has_weights() -> None:
    # Many weights rather than many draws: each of both tells as much, and draws take the time.
    size, pull = 1000, 10.0
    sampling = Sampling(chains=2, burn_in=200, draws=80, step_size=5e-4, localization=pull)
    trained = TrainingState(Bowl(size), Nothing(), 0)
    random = torch.get_rng_state()
    found = learning_coefficient(trained, sampling)
    assert torch.equal(torch.get_rng_state(), random)
    assert not trained.module.model.weight.any() and found.loss == 0
    sharp = 1000 / math.log(1000)
    assert found.of_chains == pytest.approx(size / 2 * sharp / (sharp + pull), rel=0.12)
    assert found.of_chains[0] != found.of_chains[1]
    few = Sampling(chains=2, burn_in=2, draws=5, step_size=5e-4, localization=pull)
    again = [learning_coefficient(trained, few).losses for _ in range(2)]
    assert np.array_equal(*again)


class Ten(Nothing):
    """Ten batches of 1,000."""

    def train_dataloader(self) -> list[None]:
        return [None] * 10


def test_the_last_step_of_an_epoch_has_fewer_batches_and_the_same_loss() -> None:
    bowl = Bowl(100)
    nn.init.ones_(bowl.model.weight)
    of = {}
    for accumulated in (1, 4, 20):
        trained = TrainingState(bowl, Ten(), 0, accumulated=accumulated)
        of[accumulated] = learning_coefficient(trained, Sampling(chains=1, burn_in=1, draws=5, step_size=1e-6))
        assert of[accumulated].loss == 50
    assert of[1].losses == pytest.approx(of[4].losses) and of[1].losses == pytest.approx(of[20].losses)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_training_in_another_precision_is_sampled_in_float32(dtype: torch.dtype) -> None:
    bowl, few = Bowl(4).to(dtype), Sampling(chains=1, burn_in=2, draws=5)
    assert np.isfinite(learning_coefficient(TrainingState(bowl, Nothing(), 0), few).of_chains).all()
    assert bowl.model.weight.dtype == dtype


def test_training_is_left_alone_and_a_checkpoint_is_looked_at(tmp_path: Path, one_thread, capsys) -> None:
    plain = train_in(tmp_path / "plain", *SMALL)
    watched = train_in(tmp_path / "watched", *SMALL, *WATCHED)
    assert_same_weights(newest(plain), newest(watched))
    table = pd.read_csv(watched / "diagnostics/learning_coefficient.csv")
    assert table["step"].tolist() == [2, 2, 4, 4] and table["chain"].tolist() == [0, 1, 0, 1]
    assert table["coefficient"].notna().all() and table["loss"].iloc[0] > table["loss"].iloc[-1]
    assert "learning_coefficient/mean" in pd.read_csv(watched / "metrics.csv")
    assert (watched / "pictures/learning_coefficient.png").exists()
    look = ["callbacks=[learning_coefficient]", *(one for one in WATCHED[2:])]
    inspect(watched, look, out=tmp_path / "look")
    own = pd.read_csv(tmp_path / "look/diagnostics/learning_coefficient.csv")
    assert own["coefficient"].to_numpy() == pytest.approx(table["coefficient"].to_numpy()[2:], rel=1e-3)
    inspect(watched, [*look, "callbacks.learning_coefficient.step_size=1e30"], out=tmp_path / "wild")
    assert "the loss of 2 of 2 chains was not finite: lower step_size" in capsys.readouterr().err


def test_without_devinterp_nothing_is_trained(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "devinterp.optim", None)
    with pytest.raises(LabError, match=r"pip install 'eureka-lab\[devinterp\]'"):
        train_in(tmp_path, *SMALL, *WATCHED)
