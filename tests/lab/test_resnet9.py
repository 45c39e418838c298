"""The baseline without attention, beside the transformer of every vision experiment."""

import pytest
import torch
from omegaconf import OmegaConf

from lab.config.compose import CONFIGS, compose_config
from lab.models.resnet9 import ResNet9
from lab.training.build import build_model

BASELINES = {"imagenet100": "resnet9_large", "main_task_small": "resnet9_small"}
VISION = sorted(
    path.stem
    for path in (CONFIGS / "experiment").glob("*.yaml")
    if "tile_size" in compose_config([f"experiment={path.stem}"]).data
)


@pytest.mark.parametrize("experiment", VISION)
def test_a_resnet9_is_of_the_size_of_each_experiment_s_vit(experiment: str) -> None:
    sizes, facts = {}, {}
    for model in ("", BASELINES.get(experiment, "resnet9")):
        config = compose_config([f"experiment={experiment}", *([f"model={model}"] if model else [])])
        facts = {"image_size": 2 * config.data.tile_size, "num_classes": 100 if experiment == "imagenet100" else 10}
        OmegaConf.set_struct(config, False)
        config.softmax.pop("schedule", None)
        built = build_model(config.model, config.softmax, facts)
        sizes[model] = sum(p.numel() for p in built.parameters())
    vit, resnet = sizes.values()
    assert abs(resnet / vit - 1) < 0.05
    side = facts["image_size"]
    assert built(torch.randn(2, 3, side, side)).shape == (2, facts["num_classes"])


def test_resnet9_has_no_attention_and_needs_eight_pixels() -> None:
    assert ResNet9().attention_layers() == []
    with pytest.raises(ValueError, match="8 pixels"):
        ResNet9(image_size=4)
