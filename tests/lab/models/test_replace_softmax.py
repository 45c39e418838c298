"""Models of Hugging Face, timm and one's own under softmaxes of the lab: the same numbers where they have to be."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import signal
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from typing import Any

import pytest
import timm
import timm.layers
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

import lab
from lab.attention.normalisers.plus_one import PlusOne
from lab.attention.normalisers.softmax import Softmax
from lab.attention.rules.fixed import Fixed
from lab.attention.rules.learnable import LearnableTemperature
from lab.attention.rules.norm import NormSoftmax
from lab.models.observable import OtherModel
from lab.models.reasoner import Reasoner
from lab.models.replace import heat
from lab.models.replaced_softmax import NAME, ReplacedSoftmax, _hidden_from, replaced_in
from lab.models.sdpa_calls import _Answers
from lab.models.softmaxes import SoftmaxFactory
from lab.observation.recorder import Recorder, evaluating

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[language]'")

TEXT = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
GROUPED = {**TEXT, "num_key_value_heads": 1, "head_dim": 16}
T5 = partial(transformers.T5Config, vocab_size=50, d_model=32, d_kv=16, d_ff=64, num_heads=2)
# Widths of 32 and two heads: a scale of 1/4, which rounds nothing.
MODELS: dict[str, Callable[[], nn.Module]] = {
    "GPT-2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=1)
    ),
    "RoBERTa": lambda: transformers.RobertaForMaskedLM(transformers.RobertaConfig(**TEXT)),
    "BERT": lambda: transformers.BertModel(transformers.BertConfig(**TEXT)),
    "Gemma": lambda: transformers.GemmaForCausalLM(transformers.GemmaConfig(**GROUPED)),
    "Llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED)),
    "Qwen 2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**GROUPED)),
    "Qwen 3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**GROUPED)),
    "Falcon": lambda: transformers.FalconForCausalLM(transformers.FalconConfig(**TEXT, alibi=True)),
    "T5 encoder": lambda: transformers.T5EncoderModel(T5(num_layers=2)),
    "CLIP text": lambda: transformers.CLIPTextModel(transformers.CLIPTextConfig(**TEXT)),
    "ViT": lambda: transformers.ViTModel(
        transformers.ViTConfig(**{k: v for k, v in TEXT.items() if k != "vocab_size"}, image_size=20, patch_size=4)
    ),
    "ViT of timm": lambda: _vit(),
    "Swin of timm": lambda: timm.models.SwinTransformer(
        img_size=20, patch_size=2, embed_dim=32, depths=(2,), num_heads=(2,), window_size=5, num_classes=5
    ),
    "BEiT of timm": lambda: timm.models.Beit(
        img_size=20, patch_size=4, embed_dim=32, depth=2, num_heads=2, use_rel_pos_bias=True, num_classes=5
    ),
    "EVA of timm": lambda: timm.create_model("eva02_tiny_patch14_224", img_size=70, depth=2, num_classes=5),
    "encoder of torch": lambda: _encoder(),
    "own": lambda: Own(),
}
CAUSAL = ("GPT-2", "Gemma", "Llama", "Qwen 2", "Qwen 3", "Falcon", "CLIP text")
BIASED = ("Falcon", "T5 encoder", "Swin of timm")


def _encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 2, 48, batch_first=True), 2)


def _vit(**options: Any) -> nn.Module:
    return timm.models.VisionTransformer(
        img_size=20, patch_size=4, embed_dim=32, depth=2, num_heads=2, num_classes=5, **options
    )


class Own(nn.Module):
    """A causal model as somebody writes one, its queries in groups."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.dim = 2, 32
        self.qkv = nn.Linear(32, 64)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (4, 16)).transpose(1, 2).split([2, 1, 1], 1)
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return z.transpose(1, 2).flatten(2)


@pytest.fixture(scope="module", params=MODELS)
def model(request) -> nn.Module:
    torch.manual_seed(0)
    made = MODELS[request.param]()
    made.kind = request.param
    return made


def inputs_of(model: nn.Module, padded: bool = False) -> dict[str, Tensor]:
    """Eighteen tokens, or a picture of more."""
    generator = torch.Generator().manual_seed(1)
    if "timm" in model.kind:
        side = 70 if "EVA" in model.kind else 20
        return {"x": torch.randn(2, 3, side, side, generator=generator)}
    if model.kind == "ViT":
        return {"pixel_values": torch.randn(2, 3, 20, 20, generator=generator)}
    if model.kind == "encoder of torch":
        return {"src": torch.randn(2, 18, 32, generator=generator)}
    if model.kind == "own":
        return {"x": torch.randn(2, 18, 32, generator=generator)}
    given = {"input_ids": torch.randint(2, 50, (2, 18), generator=generator)}
    if padded:
        given["attention_mask"] = torch.ones(2, 18, dtype=torch.long)
        given["attention_mask"][1, :5] = 0
    return given


def outcome(model: nn.Module, padded: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
    """The model's output and the gradient of its weights, of what stands at tokens that are no padding."""
    given = inputs_of(model, padded)
    out = model(**given)
    out = out if isinstance(out, Tensor) else out[0]
    if padded:
        out = out[given["attention_mask"].bool()]
    model.zero_grad()
    out.square().sum().backward()
    return out.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def test_a_fixed_temperature_gives_the_model_s_own_numbers(model: nn.Module) -> None:
    texts = " of " not in model.kind and model.kind not in ("ViT", "own")
    with evaluating(model):
        for padded in (False, True) if texts else (False,):
            own, slopes = outcome(model, padded)
            lab.replace_softmax(model, Fixed)
            new, new_slopes = outcome(model, padded)
            lab.restore_softmax(model)
            # Heads of 64, but fewer keys than a fused kernel is good for; tensors in another order in memory.
            if model.kind in ("EVA of timm", "encoder of torch"):
                torch.testing.assert_close(new, own, rtol=1e-5, atol=1e-6)
            else:
                assert torch.equal(new, own)
            assert new_slopes.keys() == slopes.keys()
            for name, slope in slopes.items():
                torch.testing.assert_close(new_slopes[name], slope, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("normaliser", [Softmax, PlusOne])
def test_norm_softmax_is_finite_and_its_fused_path_is_the_explicit_one(model: nn.Module, normaliser: type) -> None:
    lab.replace_softmax(model, SoftmaxFactory(partial(NormSoftmax, statistic="std"), normaliser))
    with evaluating(model):
        out, slopes = outcome(model)
        assert out.isfinite().all() and all(slope.isfinite().all() for slope in slopes.values())
        recorder = lab.Recorder(model, what=("weights", "z"))
        explicit = recorder.run(inputs_of(model))
    explicit = explicit if isinstance(explicit, Tensor) else explicit[0]
    torch.testing.assert_close(explicit, out, rtol=1e-4, atol=1e-5)
    weights = recorder[recorder.layers[-1]]["weights"]
    assert len(recorder.layers) == (1 if model.kind == "own" else 2)
    if model.kind in (*CAUSAL, "own"):
        assert not weights.triu(1).any()
    lab.restore_softmax(model)


def test_the_model_is_put_back_exactly(model: nn.Module) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    config = copy.deepcopy(getattr(model, "config", None))
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    lab.replace_softmax(model, LearnableTemperature)
    learned = [name for name, _ in model.named_parameters() if NAME in name]
    assert len(learned) == len(replaced_in(model)) > 0
    state = model.state_dict()
    assert before.keys() < state.keys()
    # Again, with another one: the first is gone.
    lab.replace_softmax(model, NormSoftmax)
    with pytest.raises(lab.LabError, match="options need a softmax given by name"):
        lab.replace_softmax(model, Fixed, tau=1.0)
    assert isinstance(replaced_in(model)[0].rule, NormSoftmax)
    lab.replace_softmax(model, partial(LearnableTemperature, initial=2.0))
    model.load_state_dict(state)
    assert all(own.rule.theta.eq(1).all() for own in replaced_in(model))
    lab.restore_softmax(model)
    after = model.state_dict()
    assert after.keys() == before.keys() and all(torch.equal(after[name], before[name]) for name in before)
    assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes
    if config is not None:
        assert model.config._attn_implementation == config._attn_implementation
        assert model.config.to_dict() == config.to_dict()
    lab.restore_softmax(model)


def test_a_copy_and_a_pickle_work_and_are_their_own(model: nn.Module) -> None:
    lab.replace_softmax(model, LearnableTemperature)
    with evaluating(model):
        out, _ = outcome(model)
        for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(outcome(made)[0], out)
            with torch.no_grad():
                replaced_in(made)[0].rule.theta.fill_(3.0)
            assert not torch.equal(outcome(made)[0], out)
            assert torch.equal(outcome(model)[0], out)
    lab.restore_softmax(model)


@pytest.mark.parametrize("kind", ["GPT-2", "ViT of timm"])
def test_it_compiles(kind: str) -> None:
    torch.manual_seed(0)
    model: Any = MODELS[kind]().eval()
    model.kind = kind
    # One layer, which takes half as long to compile as two of the same.
    layers = model.transformer.h if kind == "GPT-2" else model.blocks
    del layers[1:]
    if kind == "GPT-2":
        model.config.use_cache = False
    lab.replace_softmax(model, NormSoftmax)
    out, slopes = outcome(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    again = compiled(**inputs_of(model))
    again = again if isinstance(again, Tensor) else again[0]
    torch.testing.assert_close(again, out, rtol=1e-4, atol=1e-5)
    model.zero_grad()
    again.square().sum().backward()
    for name, slope in slopes.items():
        torch.testing.assert_close(model.get_parameter(name).grad, slope, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("kind", ["GPT-2", "Gemma", "Llama", "Qwen 2", "Qwen 3"])
def test_generation_with_a_cache_goes_on_as_without_one(kind: str) -> None:
    torch.manual_seed(0)
    model: Any = MODELS[kind]().eval()
    model.kind = kind
    given = inputs_of(model, padded=True)
    generate = partial(model.generate, **given, max_new_tokens=4, do_sample=False, pad_token_id=0)
    own = generate()
    assert torch.equal(lab.replace_softmax(model, Fixed).generate(**given, max_new_tokens=4, do_sample=False), own)
    lab.replace_softmax(model, partial(NormSoftmax, tau=0.5))
    assert torch.equal(generate(), generate(use_cache=False))


@pytest.mark.parametrize("kind", MODELS)
def test_in_bfloat16(kind: str) -> None:
    torch.manual_seed(0)
    model: Any = MODELS[kind]().eval().bfloat16()
    model.kind = kind
    given = {n: x.bfloat16() if x.is_floating_point() else x for n, x in inputs_of(model).items()}
    outs = []
    for replaced in (False, True):
        out = (lab.replace_softmax(model, Fixed) if replaced else model)(**given)
        outs.append((out if isinstance(out, Tensor) else out[0]).float())
    torch.testing.assert_close(outs[1], outs[0], rtol=0.05, atol=0.02)
    assert replaced_in(model)[0].rule.tau.dtype == torch.float32


@pytest.mark.parametrize("kind", ["GPT-2", "ViT of timm"])
def test_dropout_of_weights_is_the_model_s_own(kind: str) -> None:
    torch.manual_seed(0)
    model: Any = _vit(attn_drop_rate=0.5) if "timm" in kind else MODELS[kind]()
    model.kind = kind
    outs = []
    for softmax in (None, Fixed, SoftmaxFactory(normaliser=PlusOne)):
        if softmax is not None:
            lab.replace_softmax(model.train(), softmax)
        torch.manual_seed(3)
        outs.append(outcome(model)[0])
    assert torch.equal(outs[0], outs[1])
    assert outs[2].isfinite().all() and not torch.equal(outs[2], outcome(model)[0])


def test_tau_is_what_the_model_divides_by_unless_one_is_given() -> None:
    config = transformers.GPT2Config(
        vocab_size=50, n_embd=32, n_layer=2, n_head=2, scale_attn_by_inverse_layer_idx=True
    )
    model = lab.replace_softmax(transformers.GPT2LMHeadModel(config), Fixed)
    assert [float(own.rule.tau) for own in replaced_in(model)] == [4.0, 8.0]
    lab.replace_softmax(model, NormSoftmax)
    assert [float(own.rule.tau) for own in replaced_in(model)] == [4.0, 8.0]
    lab.replace_softmax(model, partial(NormSoftmax, tau=2.0))
    assert [float(own.rule.tau) for own in replaced_in(model)] == [2.0, 2.0]


# An encoder and a decoder of one layer each.
PAIR = {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 32))
} | {"d_model": 32, "pad_token_id": 0}


def test_queries_that_are_scaled_before_the_call_have_their_own_scale() -> None:
    """OPT and Whisper ask for scores as they are; a given tau holds for queries as they are projected."""
    torch.manual_seed(0)
    ids = torch.randint(3, 50, (2, 7))
    options = {"hidden_size": 32, "num_hidden_layers": 1, "ffn_dim": 32, "num_attention_heads": 2}
    opt = transformers.OPTModel(transformers.OPTConfig(vocab_size=50, word_embed_proj_dim=32, **options)).eval()
    whisper = transformers.WhisperModel(
        transformers.WhisperConfig(
            **PAIR, vocab_size=50, max_source_positions=20, num_mel_bins=8, bos_token_id=1, eos_token_id=2
        )
    ).eval()
    features = torch.randn(2, 8, 40)
    for model, given in (
        (opt, {"input_ids": ids}),
        (whisper, {"input_features": features, "decoder_input_ids": ids}),
    ):
        own = model(**given).last_hidden_state
        for tau in ({}, {"tau": 4.0}):
            torch.testing.assert_close(lab.replace_softmax(model, "softmax", **tau)(**given).last_hidden_state, own)
        sharper = lab.replace_softmax(model, "softmax", tau=1.0)(**given).last_hidden_state
        assert (sharper - own).abs().max() > 1e-3


def _clap() -> tuple[nn.Module, dict[str, Any]]:
    ids = torch.arange(2, 10).view(1, 8)
    return transformers.ClapTextModel(transformers.ClapTextConfig(**TEXT)), {"input_ids": ids}


def _nllb() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.NllbMoeConfig(
        **PAIR,
        vocab_size=50,
        num_experts=2,
        encoder_sparse_step=0,
        decoder_sparse_step=0,
        max_position_embeddings=64,
    )
    ids = torch.arange(2, 10).view(1, 8)
    return transformers.NllbMoeModel(config), {"input_ids": ids, "decoder_input_ids": ids.flip(1), "use_cache": False}


@pytest.mark.parametrize("make", [_clap, _nllb])
def test_models_that_transformers_runs_eagerly_keep_their_masks(make: Callable[[], tuple[nn.Module, dict]]) -> None:
    """Their modules do not tell rightly whether they are causal."""
    torch.manual_seed(0)
    model, given = make()
    model.eval()
    own = model(**given).last_hidden_state
    torch.testing.assert_close(lab.replace_softmax(model, "softmax")(**given).last_hidden_state, own)
    causal = make is _nllb
    assert any(one.is_causal for one in replaced_in(model)) == causal
    lab.replace_softmax(model, "norm_softmax", over="block")
    if causal:
        with pytest.raises(lab.LabError, match=r"NllbMoeAttention: .* would see later tokens"):
            model(**given)
    else:
        model(**given)
    lab.restore_softmax(model)
    assert model.config._attn_implementation == "eager" and torch.equal(model(**given).last_hidden_state, own)


def test_a_temperature_that_a_factory_brings_stays() -> None:
    class Sharp(Fixed):
        def __init__(self, heads: int, head_dim: int, tau: float = 0.5) -> None:
            super().__init__(heads, head_dim, tau)

    for factory in (Sharp, lambda heads, head_dim: Fixed(heads, head_dim, tau=0.5)):
        model = lab.replace_softmax(_vit(), factory)
        assert [float(own.rule.tau) for own in replaced_in(model)] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("config", "rows"),
    [
        # Of four heads of 8: keys and values of one head; then q, k and v of each head together.
        (transformers.GPTBigCodeConfig(n_embd=32, n_layer=1, n_head=4, vocab_size=50), [32, 8, 8]),
        (
            transformers.GPTBigCodeConfig(n_embd=32, n_layer=1, n_head=4, vocab_size=50, multi_query=False),
            [32, 32, 32],
        ),
        (
            transformers.GPTNeoXConfig(
                hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32, vocab_size=50
            ),
            [32, 32, 32],
        ),
    ],
)
def test_a_fused_projection_is_cut_into_what_it_holds(config: Any, rows: list[int]) -> None:
    model = transformers.AutoModelForCausalLM.from_config(config)
    (own,) = replaced_in(lab.replace_softmax(model, Fixed))
    assert [len(part) for part in own.projections().values()] == rows
    for name in "qkv":
        model.zero_grad()
        recorder = Recorder(model, what=(name,), keep_graph=True)
        with recorder.on():
            model(torch.arange(6).unsqueeze(0))
        recorder[0][name].square().sum().backward()
        gradients = own.projection_gradients()
        assert [other for other in "qkv" if gradients[other].any()] == [name]


def test_a_schedule_moves_tau() -> None:
    model = lab.replace_softmax(_vit(), "heat_treatment")
    rules = [own.rule for own in replaced_in(model)]
    assert [float(rule.tau) for rule in rules] == pytest.approx([1 / 3, 1 / 3])
    heat(model, 0.5)
    assert [float(rule.tau) for rule in rules] == [4.0, 4.0]
    lab.replace_softmax(model, "norm_softmax", schedule={"name": "heat_treatment", "start": 0.5})
    assert [float(own.rule.tau) for own in replaced_in(model)] == [0.5, 0.5]


def test_options_of_a_normaliser() -> None:
    model = lab.replace_softmax(_vit(), normaliser={"name": "plus_one", "bias": "learned", "initial": 2.0})
    (first, _) = replaced_in(model)
    assert isinstance(first.normaliser, PlusOne) and first.normaliser.theta is not None
    lab.replace_softmax(model, SoftmaxFactory(normaliser=partial(PlusOne, bias="length")))
    assert replaced_in(model)[0].normaliser.gamma is not None


def test_a_printed_model_shows_what_is_in_use() -> None:
    class Own(LearnableTemperature):
        # An option of a method's name has to be kept under another one, as the page on softmaxes says.
        def __init__(self, heads: int, head_dim: int, fraction: float = 0.5, size: int = 9, share: int = 1) -> None:
            super().__init__(heads, head_dim)
            self.fraction, self.portion = fraction, share
            self.register_buffer("size", torch.ones(size, size))

    model = lab.replace_softmax(_vit(), "norm_softmax", statistic="std", normaliser={"name": "local", "first": 0})
    assert "(rule): NormSoftmax(tau=4.0, statistic=std, over=row)" in str(model)
    assert "(normaliser): Local(window=2, first=0, flex=False)" in str(model)
    assert repr(Recorder(model, [1], "weights")) == "Recorder(VisionTransformer, layers=[1], what=['weights'])"
    heated = lab.replace_softmax(model, "heat_treatment")
    heat(heated, 0.5)
    assert "Fixed(tau=4.0)" in str(heated) and "tau=tensor" in str(heated.to("meta"))
    learned = "granularity=layer_head, parametrisation=raw, limit=2.0"
    assert str(Own(2, 16)) == f"Own(tau=4.0, {learned}, fraction=0.5, size=[9, 9])"


class Manual(nn.Module):
    """Attention that is called in a branch that is not taken."""

    num_heads, dim, fused = 2, 32, False

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x) if self.fused else x


class Odd(Own):
    """Attention with one head fewer than it tells."""

    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], scale=3.0)


class Both(Own):
    """Attention with a mask that is to hold beside the causal one."""

    def forward(self, x: Tensor) -> Tensor:
        q = x.unflatten(-1, (2, 16)).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q, torch.ones(4, 4, dtype=torch.bool), is_causal=True)


class Nested(Own):
    """Attention around attention."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = timm.layers.Attention(32, 2)


class Checkpointed(Own):
    """Attention that is worked out again in the backward pass."""

    def attend(self, x: Tensor) -> Tensor:
        q = x.unflatten(-1, (2, 16)).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q)

    def forward(self, x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(self.attend, x, use_reentrant=True)


class Decorated(Own):
    """Attention whose forward stands in a wrapper, in a function of its own."""

    @torch.autocast("cpu", enabled=False)
    def forward(self, x: Tensor) -> Tensor:
        def within(q: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, q, q)

        return within(x.unflatten(-1, (2, 16)).transpose(1, 2)).transpose(1, 2).flatten(2)


class HeldAttention(nn.Module):
    """Attention whose softmax is a module that it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.Softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x @ x.mT) @ x


class MHSA(HeldAttention):
    """The same under a name of its own."""


class RandomSampler(HeldAttention):
    """A softmax of something else, under a name that holds "msa"."""


class MadeAttention(nn.Module):
    """Attention whose softmax is a module made on the spot, as in Hugging Face's LiLT."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.Softmax(dim=-1)(x @ x.mT) @ x


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (
            lambda: transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**GROUPED)),
            "Gemma2Attention cannot be replaced: it caps its scores",
        ),
        (lambda: Changed(32, 2), "Changed cannot be replaced: it changes the forward pass of nn.MultiheadAttention"),
        (
            lambda: timm.create_model("crossvit_tiny_240"),
            "CrossVit cannot be replaced as a whole: its CrossAttention works out a softmax by itself",
        ),
        (
            lambda: timm.create_model("csatv2", num_classes=5),
            "cannot be replaced as a whole: its SpatialTransformerBlock works out a softmax by itself",
        ),
        (
            lambda: nn.Sequential(Decorated(), HeldAttention()),
            "cannot be replaced as a whole: its HeldAttention works out a softmax by itself",
        ),
        (
            lambda: nn.Sequential(Decorated(), MadeAttention()),
            "cannot be replaced as a whole: its MadeAttention works out a softmax by itself",
        ),
        (
            lambda: nn.Sequential(Decorated(), MHSA()),
            "cannot be replaced as a whole: its MHSA works out a softmax by itself",
        ),
        (lambda: Nested(), "its Nested calls attention itself and holds Attention, which does so too"),
        (
            lambda: timm.create_model("cait_xxs24_224", img_size=32, depth=1),
            "Cait cannot be replaced as a whole: its TalkingHeadAttn works out a softmax by itself",
        ),
        (
            lambda: timm.create_model("xcit_nano_12_p16_224", img_size=32, depth=1),
            "Xcit cannot be replaced as a whole: its XCA attends over channels, not over tokens",
        ),
        (
            lambda: timm.create_model("swinv2_tiny_window8_256", img_size=64, depths=(1,), num_heads=(3,)),
            "SwinTransformerV2 cannot be replaced as a whole: its WindowAttention works out a softmax by itself",
        ),
        (lambda: nn.Linear(2, 2), "Linear has no softmax that could be replaced: none of its modules"),
        (lambda: Reasoner(), "Reasoner is a model of the lab: choose its softmax when you make it"),
    ],
)
def test_models_that_cannot_be_dressed_are_refused_by_name(make: Callable[[], nn.Module], why: str) -> None:
    made = make()
    before = {name: set(vars(module)) for name, module in made.named_modules()}
    with pytest.raises(lab.LabError, match=why):
        lab.replace_softmax(made, Fixed)
    assert {name: set(vars(module)) for name, module in made.named_modules()} == before


def test_calls_that_the_softmax_was_not_made_for_are_refused() -> None:
    x = torch.randn(2, 4, 32)
    with pytest.raises(lab.LabError, match="Manual has used its own softmax, without a call"):
        lab.replace_softmax(Manual(), Fixed)(x)
    with pytest.raises(lab.LabError, match=r"Odd calls attention with queries \[2, 1, 4, 32\]"):
        lab.replace_softmax(Odd(), Fixed)(x)
    uneven = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**GROUPED, "num_key_value_heads": 8}))
    with pytest.raises(lab.LabError, match=f"{uneven.config.num_attention_heads} heads of queries and 8 of keys"):
        lab.replace_softmax(uneven, Fixed)(torch.zeros(1, 3, dtype=torch.long))
    with pytest.raises(lab.LabError, match="Both gives attention both a mask and is_causal"):
        lab.replace_softmax(Both(), Fixed)(x)
    with pytest.raises(lab.LabError, match=r"calls attention with queries \[2, 2, 2, 4, 16\]"):  # windows or heads?
        lab.replace_softmax(Windowed(1), Fixed)(torch.randn(2, 2, 4, 32))


@pytest.mark.parametrize("kind", BIASED)
def test_a_bias_of_the_model_s_own_is_added_to_logits_and_not_divided_by_the_temperature(kind: str) -> None:
    torch.manual_seed(0)
    model: Any = MODELS[kind]().eval()
    model.kind = kind
    recorder = Recorder(lab.replace_softmax(model, "softmax", tau=0.5))
    recorder.run(inputs_of(model))
    seen = recorder[1]
    unmasked = (seen["q"] @ seen["k"].transpose(-2, -1) / 0.5 + seen["bias"]).expand_as(seen["logits"])
    assert seen["bias"].abs().max() > 0.01
    shown = ~seen["logits"].isneginf()
    torch.testing.assert_close(seen["logits"][shown], unmasked[shown], rtol=1e-4, atol=1e-4)
    for softmax, why in (("adaptive_temperature", "Temperature computes its"), ("linear", "Linear does not compute")):
        with pytest.raises(lab.LabError, match=rf"^\w+: softmax: .*{why}"):
            lab.replace_softmax(model, softmax)(**inputs_of(model))


def test_an_encoder_and_its_decoder_generate_as_before() -> None:
    torch.manual_seed(0)
    model: Any = transformers.T5ForConditionalGeneration(T5(num_layers=1, decoder_start_token_id=0)).eval()
    model.kind = "T5"
    given = inputs_of(model, padded=True)
    # A cache of fixed size has more keys than queries from the start.
    for options in ({}, {"cache_implementation": "static"}):
        generate = partial(model.generate, **given, **options, max_new_tokens=4, do_sample=False)
        lab.restore_softmax(model)
        own = generate()
        assert torch.equal(lab.replace_softmax(model, Fixed).generate(**given, max_new_tokens=4, do_sample=False), own)
        lab.replace_softmax(model, partial(NormSoftmax, tau=0.5))
        assert torch.equal(generate(), generate(use_cache=False))
    assert len(Recorder(model).layers) == 3
    assert replaced_in(model)[0].projections().keys() == {"q", "k", "v"}


class Fused(nn.Module):
    """Self-attention whose one projection holds q, k and v of each group of heads, or all q, all k and all v."""

    def __init__(self, groups: int, by_group: bool) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.groups, self.by_group = 4, 2, groups, by_group
        self.qkv = nn.Linear(8, (4 + 2 * groups) * 2)

    def forward(self, x: Tensor) -> Tensor:
        H, G = self.num_heads, self.groups
        parts = self.qkv(x).unflatten(-1, (-1, 2)).transpose(1, 2)
        if self.by_group:
            each = parts.unflatten(1, (G, H // G + 2))
            q, k, v = each[:, :, :-2].flatten(1, 2), each[:, :, -2], each[:, :, -1]
        else:
            q, k, v = parts.split([H, G, G], dim=1)
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=G < H).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("by_group", [False, True])
def test_the_layout_of_a_fused_projection_is_seen_where_values_are_a_view(groups: int, by_group: bool) -> None:
    torch.manual_seed(0)
    model, x = lab.replace_softmax(nn.Sequential(Fused(groups, by_group)), "softmax"), torch.randn(3, 5, 8)
    recorder = Recorder(model, what=("q", "k", "v"))
    with recorder.on():
        model(x)
    (own,), seen = replaced_in(model), recorder[0]
    weights, biases = own.projections(), own.projection_biases()
    for name, heads in (("q", 4), ("k", groups), ("v", groups)):
        made = (x @ weights[name].T + biases[name]).unflatten(-1, (heads, 2)).transpose(1, 2)
        torch.testing.assert_close(made.repeat_interleave(4 // heads, dim=1), seen[name])


class CodeGenAttention(Fused):
    """As in transformers: q, v and k in blocks, of which the values are a copy."""

    def forward(self, x: Tensor) -> Tensor:
        q, v, k = self.qkv(x).unflatten(-1, (2, 3, 2, 2)).permute(3, 0, 2, 4, 1, 5).flatten(2, 3)
        return F.scaled_dot_product_attention(q, k, v)


class Split(nn.Module):
    """Self-attention with one projection for the queries, here perhaps with a gate, and two for keys and values."""

    num_heads, dim = 2, 8

    def __init__(self, queries: nn.Module) -> None:
        super().__init__()
        self.query, self.key, self.value = queries, nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one(x)[..., :8].unflatten(-1, (2, 4)).transpose(1, 2) for one in (self.query, self.key, self.value))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def test_a_softmax_elsewhere_than_in_attention_stays() -> None:
    model = lab.replace_softmax(nn.Sequential(Fused(4, False), RandomSampler()), "norm_softmax")
    assert len(replaced_in(model)) == 1


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(CodeGenAttention(4, False)),
        nn.Sequential(Split(nn.Linear(8, 16))),
        nn.Sequential(Split(nn.Sequential(nn.Linear(8, 8)))),
    ],
    ids=["in blocks", "gate", "several layers"],
)
def test_no_projection_is_told_where_its_rows_are_not_known(model: nn.Module) -> None:
    (own,) = replaced_in(lab.replace_softmax(model, "softmax"))
    model(torch.ones(1, 3, 8))
    assert own.projections() == own.projection_gradients() == {}


class Changed(nn.MultiheadAttention):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 20, "vdim": 24}], ids=str
)
def test_multi_head_attention_of_torch_gives_its_own_numbers(options: dict, first: bool, training: bool) -> None:
    torch.manual_seed(0)
    own = nn.MultiheadAttention(32, 2, batch_first=first, **options).train(training)
    replaced = lab.replace_softmax(copy.deepcopy(own), Fixed)
    query, key, value = (
        torch.randn(3, n, d) for n, d in ((6, 32), (5, options.get("kdim", 32)), (5, options.get("vdim", 32)))
    )
    hidden = torch.zeros(3, 5, dtype=torch.bool)
    hidden[1, -2:] = True
    negative = torch.zeros(3, 5).masked_fill(hidden, float("-inf"))
    causal = torch.ones(6, 5, dtype=torch.bool).triu(1)
    inputs = [x if first else x.transpose(0, 1) for x in (query, key, value)]
    for alone, padding, mask, weights in product(
        (False, True),
        (None, hidden, negative),
        (None, causal, torch.randn(6, 5), torch.randn(6, 6, 5)),
        ({"need_weights": False}, {}, {"average_attn_weights": False}),
    ):
        given: Any = inputs
        if alone:  # a single sample, without a dimension of samples
            given = [query[1], key[1], value[1]]
            padding = None if padding is None else padding[1]
            mask = mask[2:4] if mask is not None and mask.dim() == 3 else mask
        found = []
        for module in (own, replaced):
            module.zero_grad()
            # Masks of two kinds are deprecated in torch, not refused.
            with warnings.catch_warnings(action="ignore"):
                out, shown = module(*given, key_padding_mask=padding, attn_mask=mask, **weights)
            out.square().sum().backward()
            found.append([out, shown, *(p.grad.clone() for p in module.parameters())])
        for new, old in zip(found[1], found[0], strict=True):
            assert (new is None) == (old is None)
            if old is not None:
                torch.testing.assert_close(new, old, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("gradient", [False, True])
def test_an_encoder_of_torch_takes_no_short_cut_past_its_softmax(gradient: bool) -> None:
    """In eval mode without gradients it would compute attention itself, and turn padded batches into nested tensors."""
    torch.manual_seed(0)
    model, x = _encoder().eval(), torch.randn(3, 6, 32)
    padding = torch.zeros(3, 6, dtype=torch.bool)
    padding[1, -2:] = True
    causal = nn.Transformer.generate_square_subsequent_mask(6)
    with torch.set_grad_enabled(gradient):
        for given in ({}, {"src_key_padding_mask": padding}, {"mask": causal}, {"mask": causal, "is_causal": True}):
            seen = ~padding if "src_key_padding_mask" in given else slice(None)
            own = model(x, **given)[seen]
            torch.testing.assert_close(lab.replace_softmax(model, Fixed)(x, **given)[seen], own, rtol=1e-4, atol=1e-5)
            sharp = lab.replace_softmax(model, "softmax", tau=0.1)(x, **given)
            assert (sharp[seen] - own).abs().max() > 0.01
            # The encoder makes numbers of bool masks, which are no bias: this rule would be refused beside one.
            assert lab.replace_softmax(model, "adaptive_temperature")(x, **given)[seen].isfinite().all()
            lab.restore_softmax(model)
    assert len(lab.Recorder(lab.replace_softmax(nn.Transformer(32, 2, 1, 1, 48), "norm_softmax")).layers) == 3


def test_weights_that_are_asked_for_are_those_that_the_recorder_sees() -> None:
    torch.manual_seed(0)
    module = lab.replace_softmax(nn.MultiheadAttention(32, 2, batch_first=True), "norm_softmax")
    x = torch.randn(2, 5, 32)
    recorder = Recorder(module, what=("q", "weights", "z"))
    _, weights = recorder.run({"query": x, "key": x, "value": x})
    assert torch.equal(weights, recorder[0]["weights"].mean(1))
    module(x, x, x)[0].square().sum().backward()
    slopes = replaced_in(module)[0].projection_gradients()
    assert slopes is not None and torch.equal(torch.cat(list(slopes.values())), module.in_proj_weight.grad)


def test_a_causal_mask_written_out_is_known_where_queries_are_coupled() -> None:
    x = torch.randn(2, 5, 32)
    module = lab.replace_softmax(nn.MultiheadAttention(32, 2, batch_first=True), "norm_softmax", over="block")
    module(x, x, x)
    with pytest.raises(
        lab.LabError, match="MultiheadAttention: softmax: under NormSoftmax a query depends on the other"
    ):
        module(x, x, x, attn_mask=torch.ones(5, 5, dtype=torch.bool).triu(1))


class Windowed(nn.Module):
    """Attention within windows, as Twins ([B, windows, H, N, D]) or Hiera ([B, H, windows, N, D]) call it."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.num_heads, self.axis = 2, axis
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 16)).permute(3, 0, 1, 4, 2, 5).movedim(2, self.axis + 1)
        z = F.scaled_dot_product_attention(q, k, v)
        return z.movedim(self.axis, 1).transpose(2, 3).flatten(3)


@pytest.mark.parametrize("axis", [1, 2])
def test_windows_are_attended_one_by_one(axis: int) -> None:
    torch.manual_seed(0)
    model, x = Windowed(axis), torch.randn(2, 3, 4, 32)
    own = model(x)
    assert torch.equal(lab.replace_softmax(model, Fixed)(x), own)
    recorder = Recorder(lab.replace_softmax(model, LearnableTemperature), what=("weights",))
    recorder.run(x)
    assert recorder[0]["weights"].shape == (6, 2, 4, 4)


def test_a_checkpoint_around_a_call_is_refused() -> None:
    """In the backward pass nobody would answer it."""
    x = torch.randn(2, 4, 32, requires_grad=True)
    model = lab.replace_softmax(Checkpointed(), Fixed)
    with pytest.raises(lab.LabError, match="Checkpointed attends without gradients within a forward pass that has"):
        model(x)
    with torch.no_grad():
        model(x)
    whole = lab.replace_softmax(Own(), "softmax", tau=0.1)
    whole(x).square().sum().backward()
    own, x.grad = x.grad, None
    torch.utils.checkpoint.checkpoint(whole, x, use_reentrant=True).square().sum().backward()
    assert torch.equal(x.grad, own)


def test_a_call_within_a_wrapper_is_found() -> None:
    pair = lab.replace_softmax(nn.Sequential(Own(), Decorated()), "softmax", tau=0.1)
    assert [type(one.owner) for one in replaced_in(pair)] == [Own, Decorated]
    pair(torch.randn(2, 4, 32))


def test_towers_know_their_own_length() -> None:
    text = {k: v for k, v in TEXT.items() if k != "max_position_embeddings"}
    model = transformers.CLIPModel(
        transformers.CLIPConfig(
            text_config={**text, "max_position_embeddings": 16},
            vision_config={**text, "image_size": 20, "patch_size": 4},
        )
    )
    with pytest.raises(lab.LabError, match=r"CLIPAttention.*trained_length must be given here"):
        lab.replace_softmax(model, "entropy_matched")
    lab.replace_softmax(model.text_model, "entropy_matched")
    assert {one.rule.trained_length for one in replaced_in(model)} == {16}


def test_an_index_or_a_sink_of_the_model_is_not_passed_over() -> None:
    model = MODELS["Llama"]()
    lab.replace_softmax(model, Fixed)
    attention = model.model.layers[0].self_attn
    x = torch.randn(1, 2, 4, 16)
    from transformers import AttentionInterface

    function = AttentionInterface()["eureka_lab"]
    for name in ("indices", "block_indices", "sinks"):
        with pytest.raises(lab.LabError, match=r"LlamaAttention cannot be replaced: it (picks the keys|has attention)"):
            function(attention, x, x, x, None, **{name: torch.ones(1)})


def test_first_tokens_are_not_seen_where_a_window_s_cache_loses_them() -> None:
    model: Any = transformers.MistralForCausalLM(transformers.MistralConfig(**GROUPED, sliding_window=8)).eval()
    tokens = torch.randint(2, 50, (1, 24), generator=torch.Generator().manual_seed(1))
    lab.replace_softmax(model, "local")
    hint = r"softmax\.normaliser\.first=0 \(in Python: normaliser=\{\"first\": 0\}\)"
    with pytest.raises(lab.LabError, match=rf"sliding window of its own.*{hint}"):
        model(tokens)
    lab.replace_softmax(model, "local", normaliser={"first": 0})
    with torch.no_grad():
        whole = model(tokens).logits[:, -1]
        # transformers calls it "cache" from 5.24 on.
        name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        cached = model(tokens[:, -1:], **{name: model(tokens[:, :-1], use_cache=True)[name]})
        assert torch.allclose(cached.logits[:, -1], whole, atol=1e-5)


def test_packed_sequences_under_a_window_are_those_of_separate_runs() -> None:
    torch.manual_seed(0)
    model: Any = lab.replace_softmax(MODELS["Llama"](), "local").eval()
    tokens = torch.randint(2, 50, (1, 24))
    places = torch.cat([torch.arange(10), torch.arange(14)]).unsqueeze(0)  # by which transformers knows them
    with torch.no_grad():
        packed = model(tokens, position_ids=places, use_cache=False).logits
        alone = [model(part, use_cache=False).logits for part in (tokens[:, :10], tokens[:, 10:])]
    torch.testing.assert_close(packed, torch.cat(alone, 1), rtol=1e-5, atol=1e-5)


def test_a_softmax_goes_where_its_model_is() -> None:
    class Core(Own):
        def __init__(self) -> None:
            super().__init__()
            del self.qkv

    model = nn.Sequential(nn.Linear(4, 4), Core()).to("meta")
    lab.replace_softmax(model, "learnable_temperature")
    assert {one.device.type for one in model.parameters()} == {"meta"}


def test_what_would_tell_a_causal_model_of_later_tokens_is_refused() -> None:
    model: Any = MODELS["GPT-2"]()
    with pytest.raises(lab.LabError, match="a causal model would see later tokens"):
        lab.replace_softmax(model, "norm_softmax", over="block")
    assert not replaced_in(model)
    lab.replace_softmax(_vit(), "norm_softmax", over="block")
    # Its modules do not say that they are causal, its calls do.
    clip: Any = MODELS["CLIP text"]().eval()
    assert OtherModel(clip).answer_token == 0
    lab.replace_softmax(clip, "norm_softmax", over="block")
    for mask in (None, torch.tensor([[0, 1, 1, 1]])):
        with pytest.raises(lab.LabError, match="a causal model would see later tokens"):
            clip(torch.arange(2, 6).view(1, 4), attention_mask=mask)
    lab.replace_softmax(clip, "norm_softmax")(torch.arange(2, 6).view(1, 4))
    assert OtherModel(clip).answer_token == -1
    own: Any = lab.replace_softmax(Own(), "norm_softmax", over="block")
    with pytest.raises(lab.LabError, match="a causal model would see later tokens"):
        own(torch.randn(1, 4, 32))
    lab.replace_softmax(own, "norm_softmax")(torch.randn(1, 4, 32))
    assert OtherModel(own).answer_token == -1
    recorder = Recorder(own, what=("mask",))
    recorder.run(torch.randn(1, 4, 32))
    assert recorder[0]["mask"].shape == (1, 1, 4, 4)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"softmax": "norm_softmx"}, "did you mean 'norm_softmax'"),
        ({"softmax": "norm_softmax", "statistic": "mode"}, "softmax.statistic='mode' is wrong"),
        ({"tau": -1.0}, "softmax.tau=-1.0 is wrong: it must be greater than 0"),
        ({"tau": torch.ones(())}, "cannot be an option of a softmax"),
        ({"tau": float("inf")}, "tau=inf cannot be an option of a softmax: give a finite number"),
        ({"softmax": "local", "first": 0}, r"softmax has no 'first'; did you mean normaliser=\{\"first\": 0\}\?"),
        ({"normaliser": {"tau": 1.0}}, r"did you mean tau=\.\.\.\?"),
        ({"softmax": NormSoftmax, "tau": 2.0}, "options need a softmax given by name"),
        ({"normaliser": "plus_on"}, "did you mean 'plus_one'"),
        ({"softmax": "linear", "schedule": "heat_treatment"}, "Linear has no temperature to heat"),
    ],
)
def test_wrong_options_are_refused(options: dict, why: str) -> None:
    model = _vit()
    with pytest.raises(lab.LabError, match=why):
        lab.replace_softmax(model, **options)
    assert not replaced_in(model)


def test_models_of_one_config_are_dressed_one_by_one() -> None:
    config = transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=1)
    one, other = (transformers.GPT2LMHeadModel(config).eval() for _ in range(2))
    before = config._attn_implementation
    tokens = torch.arange(2, 14).view(1, 12)
    with torch.no_grad():
        own = {model: model(tokens).logits for model in (one, other)}
        lab.replace_softmax(one, "softmax", tau=0.1)
        assert torch.allclose(
            other(tokens).logits, own[other], atol=1e-6
        )  # its own softmax, in a config that is shared
        lab.replace_softmax(other, "softmax", tau=0.1)
        dressed = other(tokens).logits
        lab.restore_softmax(one)
        assert torch.equal(other(tokens).logits, dressed) and not torch.allclose(dressed, own[other], atol=1e-3)
        assert torch.allclose(one(tokens).logits, own[one], atol=1e-6)
        lab.restore_softmax(other)
        assert config._attn_implementation == before and torch.equal(other(tokens).logits, own[other])
        lab.replace_softmax(other.transformer.h[1], "softmax", tau=0.1)  # a part of a model
        assert not torch.allclose(other(tokens).logits, own[other], atol=1e-3)
        lab.replace_softmax(other, "softmax")
        other.set_attn_implementation("sdpa")
        with pytest.raises(lab.LabError, match=r"told to attend by 'sdpa' after its softmax was replaced"):
            other(tokens)
        other.set_attn_implementation("eager")
        assert lab.restore_softmax(other).config._attn_implementation == "eager"


def test_one_layer_of_a_copy_is_put_back_alone() -> None:
    model: Any = copy.deepcopy(lab.replace_softmax(MODELS["Llama"](), "softmax", tau=0.1))
    lab.restore_softmax(model.model.layers[0])
    assert [one.owner.layer_idx for one in replaced_in(model)] == [1]
    assert model.config._attn_implementation == "eureka_lab"
    lab.restore_softmax(model)
    assert model.config._attn_implementation == "sdpa"


def test_temperatures_stay_in_32_bit_in_a_model_that_is_moved_to_16() -> None:
    model = MODELS["GPT-2"]()
    lab.replace_softmax(model, "learnable_temperature", tau=1 / 3)
    rule = replaced_in(model.bfloat16())[0].rule
    assert {one.dtype for one in (*rule.parameters(), *rule.buffers())} == {torch.float32}
    assert next(model.parameters()).dtype == torch.bfloat16
    assert replaced_in(model.double())[0].rule.tau.dtype == torch.float64


@pytest.mark.parametrize("softmax", [Fixed(2, 16), None])
def test_what_makes_no_softmax_is_refused(softmax: Any) -> None:
    with pytest.raises(lab.LabError, match=r"is not a softmax: give a name, or a class of rules"):
        lab.replace_softmax(MODELS["GPT-2"](), softmax)


def test_a_part_of_a_model_that_transformers_runs_eagerly_keeps_its_masks() -> None:
    """Only the part is replaced, and no model around it is seen: the file that defines it tells."""
    torch.manual_seed(0)
    config = transformers.ClapTextConfig(**TEXT)
    model, tokens = transformers.ClapTextModel(config).eval(), torch.arange(2, 12).view(1, 10)
    own = model(tokens)[0]
    lab.replace_softmax(model.encoder.layer[0], "softmax")
    assert torch.allclose(model(tokens)[0], own, atol=1e-5)
    # The config goes on to another model, dressed as it is.
    del model
    gc.collect()
    other = transformers.ClapTextModel(config).eval()
    own = other(tokens)[0]
    assert torch.allclose(lab.replace_softmax(other, "softmax")(tokens)[0], own, atol=1e-5)
    assert torch.allclose(lab.restore_softmax(other)(tokens)[0], own, atol=1e-5)
    assert config._attn_implementation == "eager"


@pytest.mark.skipif(not hasattr(transformers, "Gemma4TextConfig"), reason="this transformers has no Gemma 4")
def test_the_last_queries_of_layers_that_share_keys_see_their_own_keys() -> None:
    torch.manual_seed(0)
    config = transformers.Gemma4TextConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, global_head_dim=16, max_position_embeddings=64, num_kv_shared_layers=2,
        layer_types=["sliding_attention", "full_attention"] * 2, vocab_size_per_layer_input=50,
        hidden_size_per_layer_input=8, sliding_window=32,
    )  # fmt: skip
    model, tokens = transformers.Gemma4ForCausalLM(config).eval(), torch.arange(2, 12).view(1, 10)
    own = model(tokens, logits_to_keep=3).logits
    lab.replace_softmax(model, "softmax")
    assert torch.allclose(model(tokens, logits_to_keep=3).logits, own, atol=1e-5)


class Parted(Own):
    """Attention in a method of its own, which others may call."""

    @staticmethod
    def mixed(q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, q, q)

    def apart(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*(x.unflatten(-1, (2, 16)).transpose(1, 2),) * 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.apart(x) + self.mixed(x.unflatten(-1, (2, 16)).transpose(1, 2))


@pytest.mark.parametrize("compiles", [False, True])
def test_a_method_that_others_call_attends_by_the_new_softmax(compiles: bool) -> None:
    torch.manual_seed(0)
    module, x = Parted(), torch.randn(2, 5, 32)
    calls = [lambda: module.apart(x), lambda: module.mixed(x[:, None].expand(2, 2, 5, 32)[..., :16]), lambda: module(x)]
    if compiles:
        calls = [lambda: torch.compile(module, backend="eager", fullgraph=True)(x)]
    own = [call() for call in calls]
    lab.replace_softmax(module, "softmax", tau=0.01)
    sharp = [call() for call in calls]
    assert all((new - old).abs().max() > 0.1 for new, old in zip(sharp, own, strict=True))
    assert torch.equal(pickle.loads(pickle.dumps(module)).apart(x), module.apart(x))
    lab.restore_softmax(module)
    assert all(torch.equal(call(), old) for call, old in zip(calls, own, strict=True))


class Branching(Parted):
    """Attention here or in another method."""

    here = False

    def forward(self, x: Tensor) -> Tensor:
        return Own.forward(self, x) if self.here else self.apart(x)


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def attended_by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / 4).softmax(-1) @ v


class Helped(Own):
    """Attends by a function beside it."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (4, 16)).transpose(1, 2).split([2, 1, 1], 1)
        return attended(q, k, v).transpose(1, 2).flatten(2)


class Renamed(Own):
    """Attends by the function under another name."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (4, 16)).transpose(1, 2).split([2, 1, 1], 1)
        return sdpa(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2)


class AttentionByHand(nn.Module):
    """Works out its softmax in a function beside it."""

    def forward(self, x: Tensor) -> Tensor:
        return attended_by_hand(x, x, x)


@pytest.mark.parametrize("kind", [Helped, Renamed])
def test_attention_by_a_helper_or_under_another_name_is_reached(kind: type[Own]) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Own(), kind()), torch.randn(2, 5, 32)
    own = model(x)
    assert torch.allclose(lab.replace_softmax(model, "softmax")(x), own, atol=1e-6)
    assert lab.Recorder(model).layers == (0, 1)
    assert not torch.allclose(lab.replace_softmax(model, "sigmoid")[1](x), lab.restore_softmax(model)[1](x))


def test_a_softmax_in_a_helper_is_not_passed_over() -> None:
    with pytest.raises(lab.LabError, match="its AttentionByHand works out a softmax by itself, and would keep it"):
        lab.replace_softmax(nn.Sequential(Own(), AttentionByHand()))


def test_attention_in_another_branch_compiles() -> None:
    module, x = lab.replace_softmax(Branching(), "norm_softmax"), torch.randn(2, 5, 32)
    torch._dynamo.reset()
    assert torch.allclose(torch.compile(module, backend="eager", fullgraph=True)(x), module(x), atol=1e-5)


@pytest.mark.parametrize("make", [Own, lambda: nn.MultiheadAttention(32, 2)])
def test_what_was_put_around_a_module_is_not_lost(make: Callable[[], nn.Module]) -> None:
    module: Any = lab.replace_softmax(make(), "softmax")
    within, x = module.forward, torch.randn(2, 5, 32)
    module.forward = lambda *args: within(*args)
    given = (x,) * (1 if isinstance(module, Own) else 3)
    module(*given)
    for change in (lab.restore_softmax, partial(lab.replace_softmax, softmax="norm_softmax")):
        with pytest.raises(lab.LabError, match=r"something was put around the forward pass of .*: take that off first"):
            change(module)
    module.forward = within
    assert not replaced_in(lab.restore_softmax(module))


def test_multi_head_attention_with_something_around_it_is_refused() -> None:
    module: Any = nn.MultiheadAttention(32, 2)
    within = module.forward
    module.forward = lambda *args: within(*args)
    with pytest.raises(lab.LabError, match="something else was put around its forward pass"):
        lab.replace_softmax(module, "softmax")


def test_a_key_stays_hidden_under_a_bias() -> None:
    torch.manual_seed(0)
    module = lab.replace_softmax(Bare(), "norm_softmax", tau=100.0)
    x, keep, bias = torch.randn(2, 6, 32), torch.arange(6) < 3, torch.randn(6, 6) * 2
    one, other = (module(x, torch.where(keep, 0.0, hidden) + bias) for hidden in (-10_000.0, float("-inf")))
    assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("softmax", ["polynomial", "signed", "log_length"])
def test_swin_s_windows_hide_keys_by_a_hundred(softmax: str) -> None:
    torch.manual_seed(0)
    module = lab.replace_softmax(Bare(), softmax, **({"trained_length": 4} if softmax == "log_length" else {}))
    x, keep, bias = torch.randn(2, 6, 32), torch.arange(6) < 3, torch.randn(6, 6) * 2
    one, other = (module(x, torch.where(keep, 0.0, hidden) + bias) for hidden in (-100.0, float("-inf")))
    assert torch.allclose(one, other, atol=1e-6)


def test_the_low_biases_of_far_keys_hide_none() -> None:
    """ALiBi's come down to -100 and below in steps of one slope."""
    far = torch.linspace(-300.0, 0.0, 601)
    assert (far > _hidden_from(far)).all()
    assert (torch.full((3,), -100.0) > _hidden_from(torch.full((3,), -100.0))).all()  # none of them is seen otherwise
    padded = torch.cat([far, torch.tensor([float("-inf"), -10_000.0])])
    assert (padded > _hidden_from(padded)).sum() == len(far)
    assert _hidden_from(torch.zeros(0)) == -5000


class Bare(nn.Module):
    """Attention alone, with a mask."""

    num_heads, dim = 2, 32

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q = x.unflatten(-1, (2, 16)).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q, mask)


def test_padding_that_leaves_one_token_is_not_causal() -> None:
    module = lab.replace_softmax(Bare(), "norm_softmax", over="block")
    first = torch.zeros(6, 6, dtype=torch.bool)
    first[:, 0] = True
    assert module(torch.randn(2, 6, 32), first).isfinite().all()
    with pytest.raises(lab.LabError, match="a query depends on the other"):
        module(torch.randn(2, 6, 32), torch.ones(6, 6, dtype=torch.bool).tril())


def test_two_threads_may_use_one_model() -> None:
    torch.manual_seed(0)
    attention = lab.replace_softmax(nn.MultiheadAttention(32, 2, batch_first=True), "softmax").eval()
    own, x, interval = lab.replace_softmax(Own(), "softmax"), torch.randn(1, 3, 32), sys.getswitchinterval()

    def use(_: int) -> bool:
        return attention(x, x, x)[1] is not None and own(x).isfinite().all().item()

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(use, range(400)))
    finally:
        sys.setswitchinterval(interval)
    assert replaced_in(attention)[0].tap is None


@pytest.mark.parametrize(
    ("name", "softmax"),
    [
        *(("own", softmax) for softmax in ("norm_softmax", "plus_one")),
        *(("encoder", softmax) for softmax in ("softmax", "norm_softmax")),
        ("Llama", "softmax"),
    ],
)
def test_one_compiled_graph_serves_all_lengths(name: str, softmax: str) -> None:
    torch.compiler.reset()
    model = {"own": Own, "encoder": _encoder, "Llama": MODELS["Llama"]}[name]().eval()
    normaliser = {"normaliser.bias": "length"} if softmax == "plus_one" else {}
    lab.replace_softmax(model, "softmax_plus_one" if normaliser else softmax, **normaliser)
    graphs: list[torch.fx.GraphModule] = []

    def counted(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=counted, fullgraph=True, dynamic=True)
    for length in (40, 41, 50):  # beyond those of few keys, which have paths of their own
        x = torch.randn(2, length, 32) if name != "Llama" else torch.randint(2, 50, (2, length))
        options = {"use_cache": False} if name == "Llama" else {}
        with torch.no_grad():
            # The first call tells a softmax that its module is causal.
            want, found = model(x, **options), compiled(x, **options)
        if name == "Llama":
            found, want = found.logits, want.logits
        torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-5)
    assert len(graphs) == 1


def test_copies_for_data_parallel_are_refused() -> None:
    for model, name in ((Own(), "Own"), (nn.MultiheadAttention(32, 2), "MultiheadAttention")):
        lab.replace_softmax(model, "softmax")
        with pytest.raises(lab.LabError, match=f"nn.DataParallel cannot copy {name} .* use DistributedDataParallel"):
            for module in model.modules():  # as torch.nn.parallel.replicate does, which wants a GPU
                module._replicate_for_data_parallel()
        assert model(*[torch.randn(2, 5, 32)] * (1 if name == "Own" else 3)) is not None


def test_shapes_alone_go_through_a_replaced_softmax() -> None:
    model = lab.replace_softmax(Own(), "norm_softmax").to("meta")
    assert model(torch.empty(2, 40, 32, device="meta")).shape == (2, 40, 32)


def test_what_cannot_be_dressed_half_way_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = lab.replace_softmax(nn.Sequential(Own(), Own()), "softmax")
    model[1].qkv.weight.data = model[1].qkv.weight.data.to(torch.float8_e4m3fn)
    lab.replace_softmax(model, "norm_softmax")
    assert [one.rule.tau.dtype for one in replaced_in(model)] == [torch.float32] * 2
    monkeypatch.setattr("lab.models.replace._like", lambda parameter, own: own.no_such_name)
    with pytest.raises(AttributeError):
        lab.replace_softmax(model, "softmax")
    assert [type(one.rule).__name__ for one in replaced_in(model)] == ["NormSoftmax"] * 2


def test_an_encoder_with_padding_compiles_as_a_whole() -> None:
    torch.manual_seed(0)
    model, x = _encoder(), torch.randn(3, 6, 32)
    padding = torch.zeros(3, 6, dtype=torch.bool)
    padding[1, -2:] = True
    for layer in model.layers:
        layer.dropout.p = layer.dropout1.p = layer.dropout2.p = layer.self_attn.dropout = 0.0
    lab.replace_softmax(model, "norm_softmax")
    own = model(x, src_key_padding_mask=padding)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, src_key_padding_mask=padding), own, rtol=1e-4, atol=1e-5)


def test_results_have_the_type_that_the_function_s_own_have() -> None:
    x = torch.randn(2, 5, 32)
    half = lab.replace_softmax(nn.MultiheadAttention(32, 2, dtype=torch.bfloat16), "softmax")
    out, weights = half(*(x.bfloat16(),) * 3)
    assert out.dtype == weights.dtype == torch.bfloat16
    bare = Bare()
    with torch.autocast("cpu"):
        assert bare(x).dtype == lab.replace_softmax(bare, "softmax")(x).dtype == torch.bfloat16


def test_heads_of_attention_that_widens_are_those_of_its_output() -> None:
    """As in SAM 2's Hiera, whose blocks tell both widths."""

    class Widening(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.num_heads, self.dim, self.dim_out = 2, 16, 32
            self.qkv = nn.Linear(16, 96)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).unflatten(-1, (3, 2, 16)).transpose(1, 3).unbind(2)
            return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    model, x = Widening(), torch.randn(3, 7, 16, generator=torch.Generator().manual_seed(0))
    own = model(x)
    torch.testing.assert_close(lab.replace_softmax(model, "softmax")(x), own)


@pytest.mark.parametrize("put", [lab.replace_softmax, lab.restore_softmax])
def test_ctrl_c_leaves_no_model_half_changed(put: Callable[[nn.Module], object], monkeypatch) -> None:
    """In a notebook, work goes on after it."""
    model = MODELS["BERT"]()
    own = model.config._attn_implementation

    def told(self: ReplacedSoftmax, *arguments: object) -> None:
        signal.raise_signal(signal.SIGINT)
        sound(self, *arguments)

    name = "install" if put is lab.replace_softmax else "uninstall"
    if name == "uninstall":
        lab.replace_softmax(model)
    sound = getattr(ReplacedSoftmax, name)
    monkeypatch.setattr(ReplacedSoftmax, name, told)
    with pytest.raises(KeyboardInterrupt):
        put(model)
    assert len(replaced_in(model)) == (2 if name == "install" else 0)
    monkeypatch.undo()
    lab.restore_softmax(model)
    assert model.config._attn_implementation == own


@pytest.mark.parametrize("moment", ["__init__", "__enter__", "__exit__"])
def test_a_softmax_answers_after_ctrl_c_in_a_forward_pass(moment: str, monkeypatch) -> None:
    """Else the module's own would answer from then on, without a word, or the lab's in modules that it is not in."""
    torch.manual_seed(0)
    model, x = Renamed().eval(), torch.randn(2, 5, 32)
    untouched = copy.deepcopy(model)
    own = untouched(x)
    lab.replace_softmax(model, "softmax", tau=0.3)
    before = model(x)
    sound = getattr(_Answers, moment)

    def told(self: _Answers, *arguments: object) -> None:
        if moment == "__enter__":
            sound(self, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(_Answers, moment, told)
        with pytest.raises(KeyboardInterrupt):
            model(x)
    try:
        assert torch.equal(model(x), before) and torch.equal(untouched(x), own)
    finally:
        while torch._C._len_torch_function_stack():
            torch._C._pop_torch_function_stack()


@pytest.mark.parametrize("paged", [True, False])
def test_only_a_paged_cache_is_refused(paged: bool) -> None:
    """transformers names both "cache" from 5.24 on; one that is not paged is given as keys and values already."""
    model: Any = lab.replace_softmax(MODELS["Llama"](), "softmax")
    module = next(part for part in model.modules() if hasattr(part, "q_proj"))
    attend = transformers.AttentionInterface()[model.config._attn_implementation]
    x_BHND = torch.randn(1, 2, 4, 16)
    given = {
        "dropout": 0.0,
        "scaling": 0.25,
        "cache": type("PagedAttentionCache" if paged else "DynamicCache", (), {})(),
    }
    if paged:
        with pytest.raises(lab.LabError, match="keeps keys in a paged cache"):
            attend(module, x_BHND, x_BHND, x_BHND, None, **given)
    else:
        assert attend(module, x_BHND, x_BHND, x_BHND, None, **given)[0].shape == (1, 4, 2, 16)
