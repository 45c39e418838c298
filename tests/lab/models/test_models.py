"""Sizes, wiring and initialisation of the models, and that every rule trains in them."""

import copy
import math
import pickle
from functools import partial

import pytest
import timm
import torch
import torch.nn.functional as F
from hydra.utils import instantiate
from timm.layers import PatchEmbed
from timm.models.vision_transformer import VisionTransformer
from timm.optim import create_optimizer_v2
from torch import nn

from lab.attention.layers import Attention
from lab.attention.normaliser import Normaliser
from lab.attention.normalisers.softmax import Softmax
from lab.attention.rules.adaptive import AdaptiveTemperature
from lab.attention.rules.fixed import Fixed
from lab.attention.rules.learnable import LearnableTemperature
from lab.attention.rules.norm import NormSoftmax
from lab.config.check import check
from lab.config.compose import CONFIGS, compose_config
from lab.console import LabError
from lab.models.compact_vit import CompactViT
from lab.models.observable import Observable, OtherModel, Picture
from lab.models.reasoner import Reasoner
from lab.models.softmaxes import SoftmaxFactory

# Table 3 of Eureka-moments in Transformers: heads, dimension of a head, depth, MLP ratio.
TABLE_3 = {
    "compact_vit": (4, 64, 7, 2),
    "compact_vit_mlp4": (4, 64, 7, 4),
    "compact_vit_depth4": (4, 64, 4, 2),
    "compact_vit_depth10": (4, 64, 10, 2),
    "compact_vit_dim48": (4, 48, 7, 2),
    "compact_vit_dim96": (4, 96, 7, 2),
    "compact_vit_heads2": (2, 64, 7, 2),
    "compact_vit_heads6": (6, 64, 7, 2),
    "compact_vit_heads6_depth4": (6, 64, 4, 2),
}
RULES = {
    "fixed": Fixed,
    "norm": NormSoftmax,
    "norm_block": partial(NormSoftmax, statistic="std", over="block"),
    "learnable": LearnableTemperature,
    "learnable_head": partial(LearnableTemperature, granularity="head"),
    "adaptive": partial(AdaptiveTemperature, when="always"),
}


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def expected_parameters(heads: int, head_dim: int, depth: int, ratio: int) -> int:
    """Counted by hand: patch embedding, CLS, 197 positions, layers, last norm, head."""
    width = heads * head_dim
    hidden = ratio * width
    attention = 3 * width * width + width * width + width
    mlp = width * hidden + hidden + hidden * width + width
    layer = attention + mlp + 4 * width
    return 3 * 4 * 4 * width + width + width + 197 * width + depth * layer + 2 * width + 10 * width + 10


def small_vit(**options) -> CompactViT:
    torch.manual_seed(0)
    return CompactViT(**{"image_size": 16, "depth": 2, "heads": 2, "head_dim": 8, **options})


def test_the_papers_model_has_3_750_666_parameters() -> None:
    assert parameters(CompactViT()) == 3_750_666
    assert parameters(CompactViT(softmax=NormSoftmax)) == 3_750_666


def test_every_row_of_table_3_has_a_config() -> None:
    assert {path.stem for path in (CONFIGS / "model").glob("compact_vit*.yaml")} == set(TABLE_3)


@pytest.mark.parametrize("name", TABLE_3)
def test_configs_build_the_sizes_of_table_3(name: str) -> None:
    heads, head_dim, depth, ratio = TABLE_3[name]
    config = compose_config(["experiment=main_task", f"model={name}"]).model
    with torch.device("meta"):
        model = instantiate(config, image_size=56, num_classes=10)
    assert parameters(model) == expected_parameters(heads, head_dim, depth, ratio)
    assert len(model.blocks) == depth
    layer = model.attention_layers()[0]
    assert (layer.num_heads, layer.head_dim) == (heads, head_dim)
    assert model.blocks[0].mlp.fc1.out_features == ratio * heads * head_dim


def test_the_papers_wiring() -> None:
    model = CompactViT(softmax=partial(NormSoftmax, tau=0.5))
    assert isinstance(model, VisionTransformer)
    assert all(norm.eps == 1e-6 for norm in model.modules() if isinstance(norm, nn.LayerNorm))
    layers = model.attention_layers()
    assert [block.attn for block in model.blocks] == layers
    assert len(layers) == 7
    assert all(layer.qkv.bias is None and layer.proj.bias is not None for layer in layers)
    assert [type(rule) for rule in model.rules()] == [NormSoftmax] * 7
    assert len({id(rule) for rule in model.rules()}) == 7
    assert all((rule.heads, rule.head_dim, rule.tau.item()) == (4, 64, 0.5) for rule in model.rules())
    rates = [getattr(block.drop_path1, "drop_prob", 0.0) for block in model.blocks]
    assert rates == pytest.approx([0.1 * index / 6 for index in range(7)])
    assert model(torch.randn(2, 3, 56, 56)).shape == (2, 10)
    assert all(layer.qkv.bias is not None for layer in small_vit(qkv_bias=True).attention_layers())


def test_with_plain_softmax_it_is_timms_vision_transformer() -> None:
    mine = small_vit().eval()
    theirs = VisionTransformer(
        img_size=16,
        patch_size=4,
        depth=2,
        num_heads=2,
        embed_dim=16,
        mlp_ratio=2.0,
        num_classes=10,
        qkv_bias=False,
        norm_layer=partial(nn.LayerNorm, eps=1e-6),
    ).eval()
    theirs.load_state_dict({name: t for name, t in mine.state_dict().items() if ".rule." not in name})
    x = torch.randn(3, 3, 16, 16)
    torch.testing.assert_close(mine(x), theirs(x), rtol=1e-5, atol=1e-5)


class OnPatches(Observable):
    """Two rows and three columns of patches, after two other tokens."""

    token_grid, num_prefix_tokens = (2, 3), 2  # type: ignore[assignment]


def test_regions_on_a_grid_are_read_at_the_middle_of_each_patch() -> None:
    region = torch.zeros(1, 4, 4, dtype=torch.bool)
    region[0, :2, 2:] = True
    assert OnPatches().on_tokens(region).int().tolist() == [[0, 0, 0, 1, 1, 0, 0, 0]]
    tokens = torch.eye(8, dtype=torch.bool)
    assert OnPatches().on_tokens(tokens) is tokens
    of_timm = OtherModel(timm.create_model("test_vit"), Picture((4, 4)))  # with a CLS token
    assert of_timm.on_tokens(region).shape == (1, 17)


def test_the_token_of_the_answer_has_the_name_that_is_known_of_it() -> None:
    assert CompactViT(image_size=8, depth=1).answer_name == "the answer's token (CLS)"
    # Nobody knows whether timm's first token is CLS: this model has none.
    assert OtherModel(timm.create_model("test_vit4")).answer_name == "the first token"
    causal = nn.TransformerEncoderLayer(8, 2)
    causal.is_causal = True  # type: ignore[assignment]
    assert OtherModel(causal).answer_name == "the last token"


def test_timm_builds_it() -> None:
    model = timm.create_model("compact_vit")
    assert isinstance(model, CompactViT)
    assert parameters(model) == 3_750_666
    other = timm.create_model("compact_vit", num_classes=7, depth=2, softmax=NormSoftmax)
    assert len(other.rules()) == 2
    assert isinstance(other.rules()[1], NormSoftmax)
    assert other.head.out_features == 7
    with pytest.raises(ValueError, match="no pretrained weights"):
        timm.create_model("compact_vit", pretrained=True)


@pytest.mark.parametrize(
    ("model", "override"),
    [
        ("compact_vit", "heads=0"),
        ("compact_vit", "depth=-1"),
        ("compact_vit", "init=xavier"),
        ("compact_vit", "position_std=-1.0"),
        ("compact_vit", "query_key_std=0.0"),
        ("compact_vit", "drop_path_rate=1.0"),
        ("compact_vit", "mlp_ratio=0.0"),
        ("compact_vit", "patch_size=half"),
        ("reasoner", "depth=0"),
        ("reasoner", "width=0"),
        ("set_attention", "width=0"),
        ("resnet9", "width=0"),
    ],
)
def test_options_out_of_their_range_are_refused_where_a_config_is_checked(model: str, override: str) -> None:
    config = compose_config(["experiment=main_task", f"model={model}", f"model.{override}"])
    config.paths.run = "runs/test"
    with pytest.raises(LabError, match=rf"^model\.{override.partition('=')[0]}=\S+ is wrong: "):
        check(config)


def test_patches_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="patch_size=5 does not divide the canvas of 56"):
        CompactViT(patch_size=5)


@pytest.mark.parametrize("name", RULES)
def test_every_rule_trains_in_both_models(name: str) -> None:
    torch.manual_seed(0)
    cases: list[tuple[nn.Module, torch.Tensor]] = [
        (small_vit(softmax=RULES[name]), torch.randn(8, 3, 16, 16)),
        (Reasoner(depth=2, softmax=RULES[name]), torch.randint(12, (8, 5))),
    ]
    for model, x in cases:
        y = torch.arange(8)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        losses = []
        for _ in range(30):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("make", [small_vit, Reasoner])
@pytest.mark.parametrize("granularity", ["layer_head", "layer", "head", "channel"])
def test_learned_temperatures_are_counted_tied_saved_and_not_decayed(make, granularity: str) -> None:
    softmax = partial(LearnableTemperature, granularity=granularity)
    model = make(depth=2, heads=2, softmax=softmax)
    first, second = model.rules()
    tied = granularity == "head"
    assert (first.theta is second.theta) == tied
    each = {"layer_head": 2, "layer": 1, "head": 2, "channel": 2 * first.head_dim}[granularity]
    assert parameters(model) - parameters(make(depth=2, heads=2)) == each * (1 if tied else 2)
    # Ties and values survive a copy and a checkpoint.
    twin = copy.deepcopy(model)
    assert (twin.rules()[0].theta is twin.rules()[1].theta) == tied
    nn.init.constant_(first.theta, 1.7)
    twin.load_state_dict(model.state_dict())
    assert (twin.rules()[0].theta == 1.7).all()
    assert bool((twin.rules()[1].theta == 1.7).all()) == tied
    for matrices_only in (True, False):
        optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.5, filter_bias_and_bn=matrices_only)
        decayed = {id(p) for g in optimizer.param_groups if g["weight_decay"] for p in g["params"]}
        every = [p for g in optimizer.param_groups for p in g["params"]]
        assert len(every) == len({id(p) for p in every}) == len(list(model.parameters()))
        assert not decayed & {id(first.theta), id(second.theta)}
        assert id(model.attention_layers()[0].qkv.weight) in decayed


def test_position_and_class_token_are_not_decayed() -> None:
    assert {"pos_embed", "cls_token"} <= small_vit().no_weight_decay()
    assert small_vit(softmax=LearnableTemperature).no_weight_decay() >= {
        "blocks.0.attn.rule.theta",
        "blocks.1.attn.rule.theta",
    }


@pytest.mark.parametrize("make", [small_vit, Reasoner])
def test_models_can_be_copied_and_pickled(make) -> None:
    model = make(softmax=NormSoftmax).eval()
    x = torch.randn(2, 3, 16, 16) if make is small_vit else torch.randint(12, (2, 5))
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin(x), model(x))
    assert all(type(layer) is Attention for layer in model.attention_layers())


# --- the reasoner


def test_reasoner_sizes() -> None:
    model = Reasoner()
    # Tokens, positions, q k v and projection, MLP with biases, head.
    expected = 12 * 16 + 5 * 16 + 4 * 16 * 16 + (16 * 64 + 64 + 64 * 16 + 16) + 11 * 16
    assert parameters(model) == expected
    assert parameters(Reasoner(layer_norm=True)) == expected + 3 * 2 * 16
    assert len(Reasoner(depth=3).attention_layers()) == 3
    assert (model.rules()[0].heads, model.rules()[0].head_dim) == (4, 4)
    assert model(torch.randint(12, (7, 5))).shape == (7, 11)


@pytest.mark.parametrize("depth", [1, 2])
def test_inputs_of_another_length_than_the_reasoner_s_are_refused(depth: int) -> None:
    """By the short cut of a single layer, too: a look inside takes the other way."""
    with pytest.raises(ValueError, match="inputs of 4 tokens in a model that is made for context=5"):
        Reasoner(context=5, depth=depth)(torch.randint(12, (2, 4)))


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", RULES)
def test_reasoner_reads_the_last_token_of_whole_layers(name: str, depth: int, layer_norm: bool) -> None:
    torch.manual_seed(0)
    model = Reasoner(depth=depth, layer_norm=layer_norm, softmax=RULES[name]).double()
    tokens = torch.randint(12, (6, 5))
    x = model.token(tokens) + model.position
    for block in model.blocks:
        x = block(x)
    torch.testing.assert_close(model(tokens), model.head(model.norm(x[:, -1])), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("normalised_stream", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_the_compact_vit_reads_cls_of_whole_layers(name: str, normalised_stream: bool) -> None:
    """As timm computes it, all tokens in all layers: logits, gradients, and what stochastic depth draws."""
    torch.manual_seed(0)
    own = {"image_size": 16, "depth": 2, "heads": 2, "head_dim": 8, "drop_path_rate": 0.5, "qkv_bias": True}
    model = CompactViT(**own, normalised_stream=normalised_stream, softmax=RULES[name]).double().train()
    seen: list[torch.Size] = []
    model.blocks[-1].register_forward_hook(lambda block, given, out: seen.append(out.shape))
    x = torch.randn(5, 3, 16, 16, dtype=torch.float64)
    results = []
    for forward in (model, partial(VisionTransformer.forward, model)):
        torch.manual_seed(1)
        logits = forward(x)
        results.append((logits, torch.autograd.grad(logits.square().sum(), model.patch_embed.proj.weight)[0]))
    (mine, my_slope), (theirs, their_slope) = results
    torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(my_slope, their_slope, rtol=1e-9, atol=1e-10)
    alone = model.blocks[-1].reads_first_alone
    assert [shape[1] for shape in seen] == [1 if alone else 17, 17]


class EndAligned(Normaliser):
    """Softmax whose logits depend on how far a key is from the query, places being counted from the end."""

    total = "one"

    def scores(self, q_BHND: torch.Tensor, k_BHMD: torch.Tensor) -> torch.Tensor:
        queries, keys = q_BHND.shape[-2], k_BHMD.shape[-2]
        far_NM = (torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)).abs()
        return super().scores(q_BHND, k_BHMD) - far_NM

    def weights(self, logits_BHNM: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return Softmax(1, 1).weights(logits_BHNM, mask)


class Adapted(nn.Module):
    """A projection with a low-rank adapter beside it."""

    def __init__(self, base: nn.Module, width: int, out: int) -> None:
        super().__init__()
        self.base, self.adapter = base, nn.Sequential(nn.Linear(width, 2), nn.Linear(2, out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.adapter(x)


CHANGES = ["mean of tokens", "all tokens", "another last block", "an adapter at its projection", "logits by place"]


@pytest.mark.parametrize("change", CHANGES)
def test_the_compact_vit_is_timm_s_whatever_a_user_changes(change: str) -> None:
    torch.manual_seed(0)
    softmax = SoftmaxFactory(normaliser=EndAligned if change == "logits by place" else Softmax)
    model = CompactViT(image_size=16, depth=2, heads=2, head_dim=8, softmax=softmax).eval()
    if change == "mean of tokens":
        model.reset_classifier(10, "avg")
    elif change == "all tokens":
        model.reset_classifier(10, "")
    elif change == "another last block":
        model.blocks[-1] = nn.Identity()
    elif change == "an adapter at its projection":
        model.blocks[-1].attn.qkv = Adapted(model.blocks[-1].attn.qkv, 16, 48)
    model = model.double()
    x = torch.randn(5, 3, 16, 16, dtype=torch.float64)
    torch.testing.assert_close(model(x), VisionTransformer.forward(model, x), rtol=1e-12, atol=1e-12)


def test_reasoner_depends_on_every_token_and_on_its_place() -> None:
    torch.manual_seed(0)
    model = Reasoner()
    tokens = torch.tensor([[1, 2, 3, 4, 11]])
    for place in range(5):
        other = tokens.clone()
        other[0, place] = 9
        assert not torch.allclose(model(tokens), model(other))
    assert not torch.allclose(model(tokens), model(torch.tensor([[2, 1, 3, 4, 11]])))


def test_reasoner_starts_as_torch_starts_it() -> None:
    """Tokens and positions N(0, 1), weights uniform within 1/sqrt(fan in): a moment comes sooner so (reasoner.py)."""
    torch.manual_seed(0)
    model = Reasoner(tokens=500, context=400, width=64, hidden=256)
    for weight, std in (
        (model.token.weight, 1.0),
        (model.position, 1.0),
        (model.attention_layers()[0].qkv.weight, 1 / math.sqrt(3 * 64)),
        (model.blocks[0].mlp[0].weight, 1 / math.sqrt(3 * 64)),
        (model.blocks[0].mlp[2].weight, 1 / math.sqrt(3 * 256)),
    ):
        assert weight.std().item() == pytest.approx(std, rel=0.05)
        assert abs(weight.mean().item()) < 0.02


def test_reasoner_starts_as_nanda_et_al_start_it() -> None:
    torch.manual_seed(0)
    model = Reasoner(tokens=500, context=400, num_classes=499, width=64, hidden=256, init="width", layer_norm=True)
    matrices = {name: p for name, p in model.named_parameters() if p.dim() > 1}
    assert len(matrices) == 7
    for name, weight in matrices.items():
        assert weight.std().item() == pytest.approx((500 if name == "head.weight" else 64) ** -0.5, rel=0.05), name
    assert not any(p.any() for name, p in model.named_parameters() if name.endswith("bias"))
    assert all((p == 1).all() for name, p in model.named_parameters() if "norm" in name and name.endswith("weight"))


def test_reasoner_refuses_sizes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"heads=5 does not divide model\.width=16"):
        Reasoner(heads=5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["norm", "learnable_head"])  # of all rules, without a model: test_attention
def test_models_compile_as_one_graph_and_tau_moves_without_compiling_anew(name: str) -> None:
    for make, x in ((small_vit, torch.randn(4, 3, 16, 16)), (Reasoner, torch.randint(12, (4, 5)))):
        torch.compiler.reset()
        # One layer, which takes half as long to compile as two of the same.
        model = make(softmax=RULES[name], depth=1).eval()
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        compiled(x).sum().backward()
        for rule in model.rules():
            rule.set_tau(0.4)
        with torch.compiler.set_stance("fail_on_recompile"):
            mine = compiled(x)
        torch.testing.assert_close(mine, model(x), rtol=1e-5, atol=1e-5)


def test_initialisation_keeps_its_scale_at_any_width_where_asked_for() -> None:
    def spread(**options: object) -> tuple[float, float, float]:
        torch.manual_seed(0)
        model = CompactViT(image_size=28, patch_size=14, depth=2, head_dim=32, **options)
        layer = model.attention_layers()[0]
        return float(layer.qkv.weight.std()), float(model.patch_embed.proj.weight.std()), float(model.pos_embed.std())

    published, small, large = spread(), spread(init="fan_in"), spread(init="fan_in", position_std=1.0)
    assert published[0] == pytest.approx(0.02, rel=0.05) and published[2] == pytest.approx(0.02, rel=0.2)
    assert small[:2] == (pytest.approx(128**-0.5, rel=0.05), pytest.approx((3 * 14 * 14) ** -0.5, rel=0.05))
    assert small[2] == pytest.approx(0.02, rel=0.2) and large[2] == pytest.approx(1.0, rel=0.2)
    torchs = spread(init="torch")
    assert torchs[:2] == (pytest.approx((3 * 128) ** -0.5, rel=0.05), pytest.approx((9 * 14 * 14) ** -0.5, rel=0.05))
    assert float(CompactViT(depth=1, init="torch").blocks[0].mlp.fc1.bias.abs().max()) > 0


def test_vit_lite_starts_and_normalises_as_the_code_of_hassani_et_al() -> None:
    torch.manual_seed(0)
    model = CompactViT(init="vit_lite", position_std=0.2, normalised_stream=True).eval()
    assert parameters(model) == 3_750_666
    assert float(model.patch_embed.proj.weight.std()) == pytest.approx((2 / 48) ** 0.5, rel=0.03)
    assert float(model.pos_embed.std()) == pytest.approx(0.2, rel=0.03)
    assert float(model.attention_layers()[0].qkv.weight.std()) == pytest.approx(0.02, rel=0.03)
    block, x = model.blocks[0], torch.randn(2, 197, 256)
    stream = F.layer_norm(x + block.attn(block.norm1(x)), (256,), eps=1e-6)
    torch.testing.assert_close(block(x), stream + block.mlp(stream))


def test_queries_and_keys_alone_start_small_where_asked_for() -> None:
    torch.manual_seed(0)
    model = CompactViT(image_size=28, patch_size=14, depth=2, head_dim=32, init="fan_in", query_key_std=0.02)
    for layer in model.attention_layers():
        spread = {name: float(weight.std()) for name, weight in layer.projections().items()}
        assert spread == {
            "q": pytest.approx(0.02, rel=0.05),
            "k": pytest.approx(0.02, rel=0.05),
            "v": pytest.approx(128**-0.5, rel=0.05),
        }


def test_patches_are_embedded_as_by_timms_convolution() -> None:
    torch.manual_seed(0)
    embed = CompactViT(image_size=28, patch_size=7, depth=1, head_dim=8).patch_embed
    x = torch.randn(3, 3, 28, 28)
    torch.testing.assert_close(embed(x), PatchEmbed.forward(embed, x), rtol=1e-5, atol=1e-6)
