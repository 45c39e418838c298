"""The baseline without attention, beside the transformer of every vision experiment."""

import pytest
import torch
from omegaconf import DictConfig, OmegaConf

from lab.config.compose import CONFIGS, compose_config
from lab.models.resnet9 import Residual, ResNet9
from lab.training.build import build_model

BASELINES = {"imagenet100": "resnet9_large", "main_task_small": "resnet9_small"}


def test_a_resnet9_is_of_the_size_of_each_experiment_s_vit() -> None:
    compared = 0
    for path in sorted((CONFIGS / "experiment").glob("*.yaml")):
        plain = compose_config([f"experiment={path.stem}"])
        if "tile_size" in plain.data:
            compared += 1
            _compare(path.stem, plain)
    assert compared >= 10


def _compare(experiment: str, plain: DictConfig) -> None:
    sizes, facts = {}, {}
    baseline = BASELINES.get(experiment, "resnet9")
    with_baseline = compose_config([f"experiment={experiment}", f"model={baseline}"])
    for model, config in (("", plain), (baseline, with_baseline)):
        facts = {"image_size": 2 * config.data.tile_size, "num_classes": 100 if experiment == "imagenet100" else 10}
        OmegaConf.set_struct(config, False)
        config.softmax.pop("schedule", None)
        with torch.device("meta"):
            built = build_model(config.model, config.softmax, facts)
        sizes[model] = sum(p.numel() for p in built.parameters())
    vit, resnet = sizes.values()
    assert abs(resnet / vit - 1) < 0.05, experiment
    side = facts["image_size"]
    assert built(torch.randn(2, 3, side, side, device="meta")).shape == (2, facts["num_classes"])


def test_resnet9_has_no_attention_and_needs_eight_pixels() -> None:
    assert ResNet9().attention_layers() == []
    with pytest.raises(ValueError, match="8 pixels"):
        ResNet9(image_size=4)


def test_a_residual_block_adds_its_input() -> None:
    block = Residual(4)
    block.body = torch.nn.Identity()  # type: ignore[assignment]
    x = torch.randn(1, 4, 8, 8)
    assert torch.equal(block(x), 2 * x)
