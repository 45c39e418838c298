"""A softmax of the lab beside PEFT's adapters and accelerate's offloading, on models of three libraries."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import lab
from lab.models.replaced_softmax import NAME, replaced_in

TOKENS = torch.randint(5, 90, (2, 9), generator=torch.Generator().manual_seed(0))
PICTURE = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
SEQUENCE = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))


def gpt2() -> nn.Module:
    sizes = {"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=1))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def vit() -> nn.Module:
    return timm.create_model("vit_tiny_patch16_224", depth=2, img_size=32, embed_dim=32, num_heads=4)


KINDS = {
    "transformers": (gpt2, "c_attn", {"input_ids": TOKENS}),
    "timm": (vit, "qkv", PICTURE),
    "torch": (Encoder, "linear1", SEQUENCE),
}


def made(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return lab.replace_softmax(make().eval(), "learnable_temperature")


def outcome(model: nn.Module, x: Any) -> Tensor:
    out = model(**x) if isinstance(x, dict) else model(x)
    return getattr(out, "logits", out)


@pytest.mark.filterwarnings("ignore:fan_in_fan_out", "ignore:.*is_gradient_checkpointing")
@pytest.mark.parametrize("kind", KINDS)
def test_peft_trains_saves_and_merges_what_a_softmax_learns(kind: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="pip install peft")
    make, target, x = KINDS[kind]
    options = peft.LoraConfig(target_modules=[target], modules_to_save=[NAME])
    model = peft.get_peft_model(made(make), options).eval()
    before = outcome(model, x)
    learned = [own.rule.theta for own in replaced_in(model)]
    assert len(learned) == sum("eureka" in name and one.requires_grad for name, one in model.named_parameters()) > 0
    before[..., 0].sum().backward()
    assert all(theta.grad is not None and theta.grad.any() for theta in learned)
    with torch.no_grad():
        for theta in learned:
            theta.fill_(2.0)
    after = outcome(model, x)
    assert not torch.equal(after, before)
    recorder = lab.Recorder(model, what=("weights",))
    recorder.run(x)
    assert recorder.layers == tuple(range(len(learned)))
    # The copy that PEFT trains looks at the module's own projections, adapters among them.
    assert all(own.owner in model.modules() for own in replaced_in(model))
    with model.disable_adapter():
        assert torch.equal(outcome(model, x), before)
        lab.Recorder(model, what=("weights",)).run(x)
    with pytest.raises(lab.LabError, match="would be lost: take that off first"):
        lab.restore_softmax(model)
    model.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(made(make), tmp_path).eval()
    assert torch.equal(outcome(loaded, x), after)
    merged = model.merge_and_unload()
    torch.testing.assert_close(outcome(merged, x), after)
    lab.restore_softmax(merged)
    assert not any(NAME in name for name, _ in merged.named_modules())
    assert not any(module._forward_pre_hooks for module in merged.modules())


def test_a_softmax_that_layers_share_is_not_copied_alone() -> None:
    """PEFT would train one for each layer."""
    peft = pytest.importorskip("peft", reason="pip install peft")
    model = lab.replace_softmax(gpt2(), "learnable_temperature", granularity="head")
    with pytest.raises(lab.LabError, match=r"GPT2Attention shares rule\.theta with other layers, and a copy"):
        peft.get_peft_model(
            model, peft.LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True, modules_to_save=[NAME])
        )
    one, other = replaced_in(copy.deepcopy(lab.replace_softmax(gpt2(), "learnable_temperature", granularity="head")))
    assert one.rule.theta is other.rule.theta


def test_a_softmax_put_into_a_peft_model_says_what_is_not_saved(capsys: pytest.CaptureFixture[str]) -> None:
    peft = pytest.importorskip("peft", reason="pip install peft")
    model = peft.get_peft_model(gpt2(), peft.LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True))
    lab.replace_softmax(model, "norm_softmax", statistic="std")
    assert "save_pretrained" not in capsys.readouterr().err
    lab.replace_softmax(model, "learnable_temperature")
    assert 'modules_to_save=["eureka_softmax"]' in capsys.readouterr().err


def test_an_offloaded_model_has_its_softmax_where_it_computes() -> None:
    accelerate = pytest.importorskip("accelerate", reason="pip install accelerate")
    torch.manual_seed(0)
    plain = gpt2().eval()
    wanted = lab.replace_softmax(copy.deepcopy(plain), "learnable_temperature")(TOKENS).logits
    offloaded = copy.deepcopy(plain)
    late = lab.replace_softmax(copy.deepcopy(plain), "learnable_temperature")
    accelerate.cpu_offload(late, "cpu")
    with pytest.raises(
        lab.LabError, match=r"GPT2Attention was offloaded after its softmax .*: offload the model first"
    ):
        late(TOKENS)
    accelerate.cpu_offload(offloaded)
    assert next(offloaded.parameters()).is_meta
    assert torch.equal(lab.replace_softmax(offloaded, "learnable_temperature")(TOKENS).logits, wanted)
    assert torch.equal(lab.restore_softmax(offloaded)(TOKENS).logits, plain(TOKENS).logits)
