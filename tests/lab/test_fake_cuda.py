"""The GPU's code, run without one: no tensor lies on the wrong device, and no training step waits for the GPU.

Nor has any 64-bit floats, which Apple's GPUs do not know.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from conftest import made_once, write_alphabets
from fake_cuda import CUDA, FakeGPU, Waits, fake_gpu, moved, run_backward
from hydra.utils import get_object
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch.plugins.precision import MixedPrecision
from omegaconf import DictConfig, OmegaConf
from PIL import Image

from lab.attention.row_statistics import row_entropy
from lab.attention.score_variance import score_variance
from lab.callbacks.diagnostics.base import Diagnostic
from lab.callbacks.diagnostics.gradient_norms import gradient_norms
from lab.callbacks.guards import FiniteLoss
from lab.config.compose import CONFIGS, compose_config
from lab.console import LabError
from lab.observation.observe import observe
from lab.training.build import build_model_and_data
from lab.training.seeds.module import OneSeed, Seed, SeedsData, SeedsModule

pytestmark = [
    pytest.mark.fake_cuda,
    pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="PyTorch's CPU build knows no CUDA devices"),
]

# Few layers and pixels, drawn images: shapes and devices do not depend on sizes.
DRAWN = [f"data.source.{kind}.{split}_size=60" for kind in ("digits", "garments") for split in ("train", "test")]
SCENES = ("data/source=drawn", *DRAWN, "data.batch_size=4", "data.epoch_size=8", "data.validation_size=4")
VIT = ("model.depth=1", "model.patch_size=14")
OBJECTS = "{_target_: lab.datasets.drawn.DrawnDigits, train_size: 60, test_size: 60}"
LANGUAGE = ("vocabulary=300", "block=16", "batch_size=2", "epoch_size=4", "validation_size=2")
IN_CONTEXT = (
    "data.image_size=12", "data.symmetries=4", "data.rare=null", "data.common=3", "data.holdout=4", "data.pairs=4",
    "data.shots=2", "data.batch_size=4", "data.validation_size=30", "data.in_weights_size=9",
    "data.validation_batch_size=16", "model.channels=[8,16]", "model.blocks=[1,1]", "model.stem=8", "model.layers=1",
)  # fmt: skip
# Also of the published experiment, whose model and tokenizer are pretrained ones.
ALGORITHMS = (
    "data/problems=drawn", "data/tokenizer=bytes", "model=answering", "data.problems.algorithms=[minimum,bfs]",
    "data.problems.smallest=4", "data.problems.largest=5", "data.problems.validation_sizes=[4]", "model.layers=1",
    "model.heads=2", "model.width=16",
)  # fmt: skip
TINY_TRANSFORMER = ("model.layers=1", "model.heads=2", "model.width=16")


def names(group: str) -> list[str]:
    """The configs of a group."""
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


@cache
def diagnostics() -> dict[str, Any]:
    """The classes of diagnostics, by their configs."""
    found = {name: OmegaConf.load(CONFIGS / "callbacks" / f"{name}.yaml").get(name) for name in names("callbacks")}
    classes = {name: get_object(node._target_) for name, node in found.items() if node is not None}
    return {name: one for name, one in classes.items() if issubclass(one, Diagnostic)}


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and with images by class, in small."""

    def make(folder: Path) -> None:
        write_alphabets(folder / "alphabets", {"A": 7, "B": 5}, drawings=6)
        (folder / "corpus").mkdir()
        for name in ("train.txt", "valid.txt"):
            (folder / "corpus" / name).write_text("\n".join(f"{n} and {n % 7} are numbers" for n in range(100)))
        for split in ("train", "val"):
            for kind in ("n02085620", "n02086240", "n01558993", "n03062245"):
                (folder / "imagenet100" / split / kind).mkdir(parents=True)
                for number in range(2):
                    picture = Image.fromarray(np.full((40, 40, 3), 90 * number, dtype=np.uint8))
                    picture.save(folder / "imagenet100" / split / kind / f"{number}.png")

    return made_once(tmp_path_factory, "stand-ins", make)


def small(experiment: str, stand_ins: Path, *overrides: str) -> DictConfig:
    """The config of an experiment in small, on data that is at hand."""
    base = [f"experiment={experiment}"]
    if "language" in experiment:
        pytest.importorskip("transformers", reason="the extra language is not installed")
        own = [f"data.corpus.folder={stand_ins / 'corpus'}", *(f"data.{one}" for one in LANGUAGE), *TINY_TRANSFORMER]
    elif experiment == "imagenet100":
        own = [f"data.root={stand_ins / 'imagenet100'}", "data.workers=0", "data.tile_size=16", "data.batch_size=4"]
        own += ["data.validation_size=4", "model.depth=1"]
    elif experiment == "cifar_task_1":
        own = [*SCENES, *VIT, f"+data.source.objects={OBJECTS}", "data.task.indicators=['1','2']"]
    elif experiment == "main_task_small":
        # Of a fused SGD torch has no fake kernel.
        own = [*SCENES, "model.depth=1", "+optim.options.fused=false"]
    elif experiment == "induction":
        pytest.importorskip("transformers", reason="the extra language is not installed")
        own = ["data.batch_size=4", "data.validation_size=4", *TINY_TRANSFORMER]
    elif experiment == "max_retrieval":
        own = ["data.batch_size=4", "data.validation_size=4"]
    elif experiment.startswith("reasoning"):
        own = ["data.numbers=3"]
    elif experiment.startswith("clrs_text"):
        pytest.importorskip("transformers", reason="the extra language is not installed")
        own = ["data.batch_size=2", "data.epoch_size=4", "data.validation_size=4", *ALGORITHMS]
    elif experiment.startswith("in_context"):
        own = ["data/alphabets=folder", f"data.alphabets.root={stand_ins / 'alphabets'}", *IN_CONTEXT]
    else:
        own = [*SCENES, *VIT]
    config = compose_config([*base, *own, *overrides])
    config.paths.run = "nowhere"
    return config


@pytest.fixture(autouse=True)
def own_cache(stand_ins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the tokenised corpus: one for all, whose experiments differ in the model."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(stand_ins / "cache"))


def train_a_step(module: Any, data: Any, gpu: FakeGPU) -> None:
    """A training step and a batch of validation as a trainer has them; neither may wait for the GPU.

    The first batches of each kind may: they bring images to the GPU that stay there.
    """
    many = isinstance(module, SeedsModule)
    precision = MixedPrecision("bf16-mixed", "cuda")
    guard: Any = FiniteLoss()
    places = {"global_step": 1, "current_epoch": 0, "max_epochs": 1, "check_val_every_n_epoch": 1, "global_rank": 0}
    at: Any = SimpleNamespace(**places, lightning_module=module)
    for own in module.seeds if many else [SimpleNamespace(module=module, data=data)]:
        own.module.trainer = SimpleNamespace(**places, datamodule=own.data)
    optim = module.seeds[0].module.optim if many else module.optim
    groups = optim.parameter_groups(module.seeds[0].module.model if many else module.model)
    optimizer = optim.optimizer(module.stack.parameter_groups(groups) if many else groups, 64)

    def batch(split: str) -> Any:
        def of(one: Any) -> Any:
            return one.draw_train(0, 1) if split == "train" else one.draw_validation(0)

        drawn = {seed.number: of(seed.data) for seed in module.seeds} if many else of(data)
        return data.on_after_batch_transfer(move_data_to_device(drawn, CUDA), 0)

    gpu.may_wait = True
    batch("train"), batch("validation")
    gpu.may_wait = False
    for own in [seed.module for seed in module.seeds] if many else [module]:
        own.seed_step(0, 1)
        if own.schedule is not None:
            own._set_temperatures(0.5)
    with precision.forward_context():
        loss = module.training_step(batch("train"), 1)
    guard.on_before_backward(at, module, loss)
    loss.backward()
    guard.on_before_optimizer_step(at, module, optimizer)
    if many:
        module.stack.bind_gradients()
    module.on_before_optimizer_step(optimizer)
    optimizer.step()
    with torch.no_grad(), precision.forward_context():
        module.eval().validation_step(batch("validation"), 0)
    gpu.may_wait = True
    of_model = dict(module.named_parameters())
    assert of_model and not [name for name, one in of_model.items() if one.device != CUDA]
    assert not [name for name, one in of_model.items() if one.grad is not None and one.grad.device != CUDA]
    assert loss.device == CUDA and any(one.grad is not None for one in of_model.values())


def step_in_small(experiment: str, stand_ins: Path, *overrides: str) -> Any:
    """The module of an experiment in small, after a training step and a validation step on the fake GPU."""
    module, data = build_model_and_data(small(experiment, stand_ins, *overrides))
    data.setup("fit")
    with fake_gpu(float64=False) as gpu:
        train_a_step(moved(module), data, gpu)
    return module


@pytest.mark.parametrize("intervention", names("intervention"))
def test_a_step_under_every_intervention(intervention: str, stand_ins: Path) -> None:
    step_in_small("main_task_small", stand_ins, f"intervention={intervention}")


def pairs() -> list[tuple[str, str]]:
    """Every experiment and every softmax, each at least once; causal moments under a causal mask, too."""
    experiments, softmaxes = names("experiment"), names("softmax")
    longest = range(max(len(experiments), len(softmaxes)))
    found = [(experiments[i % len(experiments)], softmaxes[i % len(softmaxes)]) for i in longest]
    return [*found, ("causal_language_small", "norm_softmax"), ("in_context_small", "norm_softmax")]


@pytest.mark.parametrize(("experiment", "softmax"), pairs())
def test_a_step_of_every_experiment_and_under_every_softmax(experiment: str, softmax: str, stand_ins: Path) -> None:
    module = step_in_small(experiment, stand_ins, f"softmax={softmax}")
    with fake_gpu(may_wait=True):
        assert gradient_norms(module.model)


def test_a_step_under_every_normaliser_of_no_softmax(stand_ins: Path) -> None:
    """Those of a softmax are tried with it, above."""
    text = "\n".join(path.read_text() for path in (CONFIGS / "softmax").glob("*.yaml"))
    tried = set(re.findall(r"^  - (?:override )?normaliser: (\w+)$", text, re.MULTILINE))
    assert "softmax" in tried
    for name in names("softmax/normaliser"):
        if name not in tried:
            step_in_small("main_task_small", stand_ins, f"softmax/normaliser={name}")


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        ("norm_softmax", ["softmax.statistic=range", "softmax.over=block"]),
        ("softmax_plus_one", ["softmax.normaliser.bias=length"]),
    ],
)
def test_a_step_on_other_ways_through_a_softmax(rule: str, options: list[str], stand_ins: Path) -> None:
    step_in_small("main_task_small", stand_ins, f"softmax={rule}", *options)


@pytest.mark.parametrize("softmax", ["norm_softmax", "entmax"])
def test_a_step_of_seeds_together(softmax: str, stand_ins: Path) -> None:
    seeds = []
    for number in (0, 1):
        module, data = build_model_and_data(
            small("reasoning", stand_ins, f"softmax={softmax}", f"seed={number}"), OneSeed
        )
        data.setup("fit")
        seeds.append(Seed(number, module, data))
    with fake_gpu(float64=False) as gpu:
        together = moved(SeedsModule(seeds))
        for seed in seeds:
            moved(seed.module)
        together.stack.bind()
        together.stack._skeleton = [moved(one) for one in together.stack._skeleton]
        train_a_step(together, SeedsData(seeds), gpu)


@pytest.fixture(scope="module")
def looked_at(stand_ins: Path) -> tuple[Any, Any]:
    """A model on the GPU and its data, which diagnostics leave as they are."""
    config = small("main_task_small", stand_ins, "softmax=norm_softmax", "data.validation_size=16")
    module, data = build_model_and_data(config)
    data.setup("fit")
    with fake_gpu(may_wait=True):
        return moved(module).model, data


# Callbacks that do not look at a probe set of pictures, and why they are not tried here.
ELSEWHERE = {
    "exact_match": "decodes texts, token by token",
    "head_entropy": "reads texts, and its numbers at once",
    "induction_heads": "reads tokens: tried below",
    "validation": "validates as the steps above, and reads its numbers at once",
    "learning_coefficient": "trains a copy of the model, by the steps above",
    "gradient_norms": "reads what the steps above leave",
    "temperatures": "reads numbers now and then, when it logs",
    "sample_scenes": "draws what the data holds, without the model",
    "throughput": "looks at no tensor",
    "progress": "reads what is logged",
    "eureka": "reads what is logged",
}


def test_every_callback_is_tried_or_is_known_not_to_be() -> None:
    alone = {
        name for name in names("callbacks") if name in OmegaConf.load(CONFIGS / "callbacks" / f"{name}.yaml")
    }  # the others are lists of these
    others = ELSEWHERE.keys() - diagnostics().keys()
    assert alone - diagnostics().keys() == others, f"say in ELSEWHERE of {__file__} why it is not tried here"
    assert diagnostics().keys() & ELSEWHERE.keys() == {"exact_match", "induction_heads"}


@pytest.mark.parametrize("float64", [True, False], ids=["NVIDIA", "Apple"])
@pytest.mark.parametrize("diagnostic", sorted(diagnostics().keys() - ELSEWHERE.keys()))
def test_every_diagnostic_looks(diagnostic: str, float64: bool, looked_at: tuple[Any, Any], tmp_path: Path) -> None:
    model, data = looked_at
    own = diagnostics()[diagnostic](folder=str(tmp_path), scenes=16)
    with fake_gpu(may_wait=True, float64=float64):
        (found,) = observe(model, data, [own], CUDA, MixedPrecision("bf16-mixed", "cuda"))
    own.keep(found, 1, 1)
    assert own.path.exists() == bool(found.rows)
    assert found.rows or found.arrays


def test_induction_heads_are_looked_for(stand_ins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = diagnostics()["induction_heads"]
    # Which tokens occur depends on numbers, which there are none of.
    monkeypatch.setattr(own, "_drawn", lambda self, seen: torch.arange(8).repeat(2, 2))
    module, data = build_model_and_data(small("causal_language_small", stand_ins, "softmax=norm_softmax"))
    data.setup("fit")
    with fake_gpu(may_wait=True, float64=False):
        (found,) = observe(moved(module).model, data, [own(folder=str(tmp_path))], CUDA)
    assert [row["layer"] for row in found.rows] == [0, 0, -1]


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (lambda x: x.sum().item(), "a number is read"),
        (lambda x: x[x > 0], "a mask"),
        (lambda x: bool((x > 0).any()), "a number is read"),
        (lambda x: x.nonzero(), "its shape depends"),
        (lambda x: x.cpu(), "not non_blocking"),
        (lambda x: x + torch.tensor([1.0, 2.0], device="cuda"), "not non_blocking"),
        (lambda x: x[torch.tensor([0])], "on the processor"),
    ],
)
def test_who_waits_is_named(read: Any, words: str) -> None:
    with fake_gpu(), pytest.raises(Waits, match=rf"{words}.*tests/lab/test_fake_cuda.py:\d+: .*lambda x"):
        read(torch.ones(2, device="cuda"))


def test_a_gpu_without_64_bit_floats_makes_none() -> None:
    with fake_gpu(float64=False), pytest.raises(TypeError, match=r"64-bit floats.*tests/lab/test_fake_cuda.py:\d+: "):
        torch.ones(2, device="cuda").double()


def test_a_tensor_on_the_wrong_device_is_an_error() -> None:
    with fake_gpu(may_wait=True), pytest.raises(RuntimeError, match=r"same device|different devices"):
        torch.ones(2, device="cuda") + torch.ones(2)


def test_the_backward_pass_in_python_has_autograds_numbers() -> None:
    """On real numbers, of a function whose backward pass is the lab's own among them."""
    q, k = (torch.randn(2, 2, 40, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    scale = torch.ones(2, 1, 1, dtype=torch.float64, requires_grad=True)
    value = row_entropy(q * scale, k).sum() + score_variance(q * scale, k)[0].square().sum()
    want = torch.autograd.grad(value, (q, k, scale), retain_graph=True)
    with patch("torch.autograd._engine_run_backward", run_backward):
        found = torch.autograd.grad(value, (q, k, scale))
    torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-12)


def test_losses_on_a_gpu_are_looked_at_together_and_before_a_checkpoint() -> None:
    alone = SimpleNamespace(all_gather=lambda own: own)
    at: Any = SimpleNamespace(global_step=7, current_epoch=2, strategy=alone)
    on_gpu: Any = SimpleNamespace(device=CUDA, model=torch.nn.Linear(1, 1))
    at.lightning_module = on_gpu
    guard: Any = FiniteLoss(every_n_steps=10)
    for step, loss in ((7, 1.0), (8, float("nan")), (9, 2.0)):
        at.global_step = step
        guard.on_before_backward(at, on_gpu, torch.tensor(loss))
        guard.on_before_optimizer_step(at, on_gpu, None)
    with pytest.raises(LabError, match=r"the loss is nan at step 9 \(epoch 3\)"):
        guard.state_dict()
    assert guard.state_dict() == {}
    guard.on_before_backward(at, on_gpu, torch.tensor(float("inf")))
    at.global_step = 10
    with pytest.raises(LabError, match=r"the loss is inf at step 10"):
        guard.on_before_optimizer_step(at, on_gpu, None)
    # Of two processes the other one's is not finite: both end.
    at.strategy = SimpleNamespace(all_gather=lambda own: torch.stack([own, own + float("nan")]))
    guard.on_before_backward(at, on_gpu, torch.tensor(1.0))
    with pytest.raises(LabError, match=r"the loss is nan at step 11"):
        guard.on_validation_start(at, on_gpu)
