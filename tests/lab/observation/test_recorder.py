"""What the recorder sees is what the model does, and watching changes nothing."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

import lab.attention.layers
from lab.attention.rules.norm import NormSoftmax
from lab.console import LabError
from lab.models.compact_vit import CompactViT
from lab.models.reasoner import Reasoner
from lab.observation.observe import mean_over_scenes
from lab.observation.recorder import QUANTITIES, Recorder


def vit() -> CompactViT:
    torch.manual_seed(0)
    return CompactViT(image_size=16, depth=2, heads=2, head_dim=8, drop_path_rate=0.5, softmax=NormSoftmax)


def reasoner() -> Reasoner:
    torch.manual_seed(0)
    return Reasoner(depth=2, softmax=NormSoftmax)


def batch(model: nn.Module) -> Tensor:
    make = torch.Generator().manual_seed(1)
    if isinstance(model, CompactViT):
        return torch.randn(3, 3, 16, 16, generator=make)
    return torch.randint(12, (3, 5), generator=make)


@pytest.mark.parametrize("make", [vit, reasoner])
def test_recorded_quantities_hang_together_and_explain_the_output(make) -> None:
    model = make()
    x = batch(model)
    recorder = Recorder(model)
    output = recorder.run(x)
    model.eval()
    torch.testing.assert_close(output, model(x), rtol=1e-5, atol=1e-5)
    assert recorder.layers == (0, 1)
    for index, layer in enumerate(model.attention_layers()):
        seen = recorder[index]
        assert set(seen) == set(QUANTITIES) - {"mask", "bias"}
        tokens = 17 if make is vit else 5
        assert seen["q"].shape == (3, layer.num_heads, tokens, layer.head_dim)
        assert seen["weights"].shape == (3, layer.num_heads, tokens, tokens)
        beta = layer.rule.inverse_temperature(seen["q"], seen["k"])
        torch.testing.assert_close(seen["logits"], (seen["q"] * beta) @ seen["k"].transpose(-2, -1))
        torch.testing.assert_close(seen["weights"], seen["logits"].softmax(-1))
        torch.testing.assert_close(seen["z"], seen["weights"] @ seen["v"])
        assert not any(tensor.requires_grad for tensor in seen.values())


def test_q_k_and_v_are_projections_of_what_the_layer_is_given() -> None:
    model = vit().eval()
    given: list[Tensor] = []
    model.attention_layers()[1].register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    recorder = Recorder(model, layers=[1], what=("q", "k", "v"))
    recorder.run(batch(model))
    assert recorder.layers == (1,)
    assert set(recorder[1]) == {"q", "k", "v"}
    for name, weight in model.attention_layers()[1].projections().items():
        expected = (given[0] @ weight.T).view(3, 17, 2, 8).transpose(1, 2)
        torch.testing.assert_close(recorder[1][name], expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(LabError, match=r"layer 0 was not read; read are \[1\]"):
        recorder[0]
    assert [one["q"] for one in recorder] == [recorder[1]["q"]]
    with pytest.raises(LabError, match="None is not a model: give"):
        Recorder(None)  # type: ignore[arg-type]
    with pytest.raises(LabError, match="nothing is read yet"):
        Recorder(model)[0]


@pytest.mark.parametrize("make", [vit, reasoner])
def test_watching_leaves_no_trace(make) -> None:
    model = make().train()
    attention = model.attention_layers()[0]
    attention.eval()
    before = copy.deepcopy(model.state_dict())
    flags = [module.training for module in model.modules()]
    noise = torch.get_rng_state()
    Recorder(model).run(batch(model))
    assert torch.equal(torch.get_rng_state(), noise)
    assert [module.training for module in model.modules()] == flags
    assert not attention.training
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(layer.tap is None for layer in model.attention_layers())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_off_it_costs_no_explicit_attention(monkeypatch) -> None:
    model = vit().eval()
    calls: list[int] = []
    explicit = lab.attention.layers.attend_explicit

    def counted(*args):
        calls.append(1)
        return explicit(*args)

    monkeypatch.setattr(lab.attention.layers, "attend_explicit", counted)
    recorder = Recorder(model, layers=[0])
    model(batch(model))
    assert not calls
    recorder.run(batch(model))
    assert len(calls) == 1
    model(batch(model))
    assert len(calls) == 1


def test_with_its_graph_kept_gradients_flow_to_what_was_recorded() -> None:
    model = vit().eval()
    recorder = Recorder(model, keep_graph=True)
    with recorder.on():
        output = model.forward(batch(model))
    weights = recorder[1]["weights"]
    (slope,) = torch.autograd.grad(output.square().sum(), weights, retain_graph=True)
    assert slope.abs().sum() > 0
    (slope,) = torch.autograd.grad(weights.square().sum(), model.attention_layers()[0].qkv.weight)
    assert slope.abs().sum() > 0


def test_training_mode_is_watched_as_it_is() -> None:
    model = vit().train()
    x = batch(model)
    torch.manual_seed(3)
    plain = model(x)
    torch.manual_seed(3)
    with Recorder(model).on():
        watched = model.forward(x)
    torch.testing.assert_close(watched, plain, rtol=1e-5, atol=1e-5)


def test_an_error_inside_switches_it_off() -> None:
    model = vit()
    with pytest.raises(RuntimeError, match="inside"), Recorder(model).on():
        raise RuntimeError("inside")
    with pytest.raises(ValueError, match=r"made for images of \(\d+, \d+\) pixels, got \(20, 20\)"):
        Recorder(model).run(torch.zeros(1, 3, 20, 20))
    assert all(layer.tap is None for layer in model.attention_layers())
    assert model.training


@pytest.mark.parametrize("where", ["eval", "hook", "tap"])
def test_ctrl_c_at_any_moment_leaves_the_model_as_it_was(where: str, monkeypatch) -> None:
    """In a notebook, work goes on after it: no module may stay in eval mode, and no recorder listening."""
    model = vit().train()
    recorder = Recorder(model, what=("residual",))
    came = []

    def told(self: object, *arguments: object) -> None:
        came.append(where)
        if len(came) == 2:
            raise KeyboardInterrupt

    class Removable:
        remove = told

    with monkeypatch.context() as patched:
        if where == "eval":
            patched.setattr(CompactViT, "eval", lambda self: (nn.Module.eval(self), told(self), told(self)))
        elif where == "hook":
            patched.setattr(CompactViT, "forward", lambda self, x: (told(self), told(self)))
        else:
            # While it puts everything back.
            patched.setattr(nn.Module, "register_forward_pre_hook", lambda self, hook: Removable())
        with pytest.raises(KeyboardInterrupt):
            recorder.run(batch(model))
    assert all(module.training for module in model.modules())
    Recorder(model).run(batch(model))


def test_two_recorders_do_not_take_each_others_layers() -> None:
    model = vit().eval()
    first, second, other = Recorder(model, [0]), Recorder(model, [0, 1]), Recorder(model, [1])
    with first.on():
        with pytest.raises(RuntimeError, match="another recorder listens"), second.on():
            pass
        with other.on():
            model.forward(batch(model))
    assert set(first[0]) == set(other[1]) == set(QUANTITIES) - {"mask", "bias"}


@pytest.mark.slow
@pytest.mark.parametrize("in_place", [True, False])
def test_a_compiled_model_is_watched_without_compiling_anew(in_place: bool) -> None:
    torch.compiler.reset()
    model = vit().eval()
    compiled: nn.Module
    if in_place:
        model.compile(backend="aot_eager", fullgraph=True)
        compiled = model
    else:
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)  # type: ignore[assignment]
    x = batch(model)
    with torch.no_grad():
        plain = compiled(x)
        recorder = Recorder(compiled)
        with torch.compiler.set_stance("fail_on_recompile"):
            torch.testing.assert_close(recorder.run(x), plain, rtol=1e-5, atol=1e-5)
            assert set(recorder[0]) == set(QUANTITIES) - {"mask", "bias"}
            torch.testing.assert_close(compiled(x), plain)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"what": "weight"}, r"does not know \['weight'\]"),
        ({"what": ("weight",)}, r"does not know \['weight'\]; valid: queries, tokens, q, k, v, mask, bias, logits"),
        ({"layers": [2]}, r"indices from 0 to 1, got \[2\]"),
        ({"layers": [-1]}, r"indices from 0 to 1, got \[-1\]"),
        ({"layers": 1}, "layers is a list of indices from 0 to 1, got 1"),
        ({"layers": ["0"]}, r"got \['0'\]"),
    ],
)
def test_what_does_not_exist_is_refused(options: dict, words: str) -> None:
    with pytest.raises(LabError, match=words):
        Recorder(vit(), **options)


def test_every_scene_counts_once_however_they_are_cut() -> None:
    scenes = torch.tensor([[1.0, 2.0], [math.nan, 3.0], [4.0, 5.0], [7.0, 6.0]])
    for cut in ((4,), (1, 3), (2, 2), (1, 1, 1, 1)):
        assert mean_over_scenes(scenes.split(cut)).tolist() == [4, 4]
    assert mean_over_scenes([torch.full((2,), math.nan)]).isnan()
