"""A trained model comes back from its run folder, under its own softmax or another."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import train_in

from lab.console import LabError
from lab.models.composed_softmax import softmax_config
from lab.training.load import read_trained

SETS = (
    "experiment=max_retrieval",
    "data.epoch_steps=3",
    "data.batch_size=8",
    "data.validation_size=8",
    "model.width=8",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return train_in(tmp_path_factory.mktemp("load"), *SETS, "softmax=learnable_temperature", "trainer.max_epochs=2")


def test_the_newest_weights_are_loaded(folder: Path) -> None:
    trained = read_trained(folder)
    model = trained.model()
    assert trained.step == 6
    assert not model.training
    saved = torch.load(folder / "checkpoints" / "last-000000006.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(value, saved[f"model.{name}"]) for name, value in model.state_dict().items())


def test_another_softmax_keeps_the_weights_and_brings_its_own_temperature(folder: Path) -> None:
    trained = read_trained(folder)
    own: Any = trained.model()
    other: Any = trained.model(softmax_config("adaptive_temperature", "softmax.tau=2.0"))
    rule = other.rules()[0]
    assert type(rule).__name__ == "AdaptiveTemperature"
    assert rule.tau.item() == 2.0
    assert torch.equal(own.items[0].weight, other.items[0].weight)


def test_what_is_missing_is_named(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(LabError, match=r"holds no run: config\.yaml is missing"):
        read_trained(tmp_path)
    (tmp_path / "config.yaml").write_text((folder / "config.yaml").read_text())
    with pytest.raises(LabError, match="no checkpoint yet"):
        read_trained(tmp_path)


def test_a_softmax_that_is_swapped_in_is_checked() -> None:
    with pytest.raises(LabError, match=r"softmax\.statistic='mad' is wrong"):
        softmax_config("norm_softmax", "softmax.statistic=mad")
    # As the experiment of a run has it.
    assert softmax_config("norm_softmax", "+norm_softmax.statistic=std").statistic == "std"
