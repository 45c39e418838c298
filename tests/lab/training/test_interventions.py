"""Gradient scaling, checked by hand."""

import pytest
import timm
import torch

import lab
from lab.config.check import check_arguments
from lab.console import LabError
from lab.models.compact_vit import CompactViT
from lab.models.set_attention import SetAttention
from lab.training.interventions.grad_scaling import GradScaling


def model_with_gradients() -> CompactViT:
    torch.manual_seed(0)
    model = CompactViT(image_size=16, depth=2, heads=2, head_dim=8)
    model(torch.randn(3, 3, 16, 16)).square().sum().backward()
    return model


def test_blocks_of_a_layer_get_the_mean_of_the_whole_weight() -> None:
    model = model_with_gradients()
    before = [layer.qkv.weight.grad.clone() for layer in model.attention_layers()]
    others = {n: p.grad.clone() for n, p in model.named_parameters() if "qkv" not in n}
    GradScaling()(model)
    for layer, old in zip(model.attention_layers(), before, strict=True):
        mean = old.abs().mean()
        for new, block in zip(layer.qkv.weight.grad.chunk(3), old.chunk(3), strict=True):
            torch.testing.assert_close(new.abs().mean(), mean)
            torch.testing.assert_close(new, block * mean / block.abs().mean())
    assert all(torch.equal(p.grad, others[n]) for n, p in model.named_parameters() if "qkv" not in n)


def test_heads_get_the_size_of_their_value_gradient() -> None:
    model = model_with_gradients()
    before = [layer.qkv.weight.grad.clone() for layer in model.attention_layers()]
    GradScaling(per="head", to="value")(model)
    for layer, old in zip(model.attention_layers(), before, strict=True):
        new = layer.qkv.weight.grad.view(3, 2, 8, 16)
        old = old.view(3, 2, 8, 16)
        torch.testing.assert_close(new[2], old[2])
        for head in range(2):
            for block in (0, 1):
                torch.testing.assert_close(new[block, head].abs().mean(), old[2, head].abs().mean())


def test_zero_gradients_and_none_stay() -> None:
    model = model_with_gradients()
    GradScaling()(CompactViT(image_size=16, depth=1, heads=2, head_dim=8))
    model.attention_layers()[0].qkv.weight.grad[:16] = 0
    GradScaling(to="value")(model)
    assert model.attention_layers()[0].qkv.weight.grad.isfinite().all()
    assert (model.attention_layers()[0].qkv.weight.grad[:16] == 0).all()


def test_separate_projections_are_scaled_too() -> None:
    torch.manual_seed(0)
    model = SetAttention()
    model((torch.rand(4, 6, 11), torch.rand(4, 1))).square().sum().backward()
    GradScaling()(model)
    sizes = [gradient.abs().mean() for gradient in model.attention_layers()[0].projection_gradients().values()]
    torch.testing.assert_close(sizes[0], sizes[1])
    torch.testing.assert_close(sizes[1], sizes[2])


def test_a_model_of_another_library_is_refused() -> None:
    """Gradients of fused projections may be copies, in which nothing would be scaled."""
    model = lab.replace_softmax(
        timm.models.VisionTransformer(img_size=8, patch_size=4, embed_dim=8, depth=1, num_heads=2)
    )
    with pytest.raises(LabError, match="knows the lab's own models, not Attention"):
        GradScaling()(model)


@pytest.mark.parametrize("options", [{"per": "token"}, {"to": "sum"}])
def test_unknown_options_are_refused(options: dict) -> None:
    with pytest.raises(LabError, match=r"intervention\."):
        check_arguments(GradScaling, options, "intervention")
