import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import runs_in
from timm.models.vision_transformer import VisionTransformer

from lab.attention.rules.learnable import LearnableTemperature
from lab.callbacks.throughput import Throughput, no_training
from lab.config.check import check_arguments
from lab.console import LabError
from lab.models.replace import replace_softmax
from lab.models.set_attention import SetAttention
from lab.runs.metrics import read_metrics
from lab.runs.outcome import Ending
from lab.runs.spec import RunSpec
from lab.train import run
from lab.training.build import build_options
from lab.training.metrics import LossAndAccuracy
from lab.training.module import TwoStepModule
from lab.training.optim import OptimConfig


def test_learning_rate_scales_with_the_batch() -> None:
    assert OptimConfig(lr=1e-3, lr_reference_batch=512).scaled_lr(256) == pytest.approx(5e-4)
    assert OptimConfig(lr=1e-3).scaled_lr(256) == 1e-3


@pytest.mark.parametrize(
    "options",
    [{"lr": 0}, {"lr": 1, "label_smoothing": 1.0}, {"lr": 1, "weight_decay": -1}, {"lr": 1, "min_lr": -1}],
)
def test_numbers_are_checked(options) -> None:
    with pytest.raises(LabError, match=r"optim\."):
        check_arguments(OptimConfig, options, "optim")


@pytest.mark.parametrize(
    ("name", "options", "may_fuse", "fused"),
    [
        ("adamw", {}, True, True),
        ("sgd", {}, True, True),
        ("adamw", {}, False, None),
        ("adamw", {"fused": True}, False, None),
        ("adamw", {"foreach": True}, True, None),
        ("adamw", {"fused": False}, True, False),
        ("lookahead_adamw", {}, True, None),
        ("nadam", {}, True, None),
    ],
)
def test_optimisers_are_fused_where_they_can_be(name, options, may_fuse, fused) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = OptimConfig(lr=1.0, name=name, options=options).optimizer([{"params": [weight]}], 1, may_fuse)
    assert optimizer.param_groups[0].get("fused") is fused
    weight.grad = torch.ones(3)
    optimizer.step()
    assert (weight < 1).all()


def test_the_loss_is_in_float64_where_float32_would_round_it_away() -> None:
    logits, right = torch.tensor([[40.0, 0.0]], requires_grad=True), torch.tensor([0])
    losses = {}
    for precision in (None, "float64"):
        optim = OptimConfig(lr=1e-3, loss_precision=precision)
        losses[precision] = TwoStepModule(torch.nn.Identity(), optim, 2).loss(logits, right)
    assert losses[None] == 0 and losses["float64"].item() == pytest.approx(math.exp(-40), rel=1e-6)
    (slope,) = torch.autograd.grad(losses["float64"], logits)
    assert slope.dtype == torch.float32 and slope[0, 1].item() == pytest.approx(math.exp(-40), rel=1e-5)


@pytest.mark.parametrize("together", [(), ("seeds=2",)])
def test_the_rate_that_is_told_is_the_one_that_an_epoch_was_trained_with(tmp_path: Path, together) -> None:
    sets = ("experiment=reasoning", "data.numbers=4", "trainer.max_epochs=3", "trainer.check_val_every_n_epoch=1")
    run([*sets, "optim.lr=0.2", "optim.warmup_lr=0.1", "optim.warmup_epochs=2", *together, f"paths.runs={tmp_path}"])
    for folder in runs_in(tmp_path):
        told = [row["train/learning_rate"] for row in read_metrics(folder / "metrics.csv") if "train/loss" in row]
        assert told == pytest.approx([0.1, 0.15, 0.2])


@pytest.mark.parametrize(
    ("options", "rates"),
    [
        ({"schedule": "none", "warmup_lr": 0.1, "warmup_epochs": 0}, [1.0, 1.0, 1.0, 1.0]),
        # A rate that stays is warmed up, too.
        ({"schedule": "none", "warmup_lr": 0.1, "warmup_epochs": 2}, [0.1, 0.55, 1.0, 1.0]),
        (
            {"schedule": "cosine", "min_lr": 0.1},
            [0.1 + 0.9 * (1 + math.cos(math.pi * epoch / 10)) / 2 for epoch in range(10)],
        ),
        ({"schedule": "linear", "min_lr": 0.1}, [1 - 0.9 * epoch / 10 for epoch in range(10)]),
    ],
)
def test_a_schedule_is_its_curve_down_to_the_least_rate(options: dict, rates: list[float]) -> None:
    config = OptimConfig(lr=1.0, **options)
    optimizer = config.optimizer([{"params": [torch.nn.Parameter(torch.ones(3))]}], 1)
    scheduler = config.scheduler(optimizer, len(rates))
    seen = []
    for epoch in range(len(rates)):
        if scheduler is not None:
            scheduler.step(epoch)
        seen.append(optimizer.param_groups[0]["lr"])
    assert seen == pytest.approx(rates)


def test_a_schedule_that_needs_a_warm_up_is_refused_without() -> None:
    with pytest.raises(ValueError, match=r"optim\.schedule=rsqrt .*: give optim\.warmup_epochs"):
        OptimConfig(lr=1e-3, schedule="rsqrt")
    optim = OptimConfig(lr=1e-3, schedule="rsqrt", warmup_epochs=2)
    with pytest.raises(ValueError, match=r"optim\.schedule=rsqrt does not fit 2 epochs with optim\.warmup_epochs=2"):
        optim.scheduler(optim.optimizer([{"params": [torch.nn.Parameter(torch.zeros(2, 2))]}], 1), 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_sums_of_an_epoch_are_not_kept_in_16_bit(dtype: torch.dtype) -> None:
    """trainer.precision=bf16-true converts the module with its metrics."""
    metrics = LossAndAccuracy(4, ignored=-100).to(dtype)
    logits, target = torch.eye(4).repeat(64, 1, 1), torch.arange(4).repeat(64, 1)
    for _ in range(2):
        for _ in range(400):
            metrics.update(logits=logits, target=target, loss=torch.tensor(2.3))
        told = metrics.compute()
        assert told["loss"].item() == pytest.approx(2.3, rel=1e-4) and told["accuracy"].item() == 1
        metrics.reset()


def test_while_one_seed_is_looked_into_none_of_them_trains() -> None:
    speeds = [Throughput(), Throughput()]
    with no_training(SimpleNamespace(callbacks=speeds[:1], callbacks_of_all_seeds=speeds)):  # type: ignore[arg-type]
        pass
    assert speeds[0]._paused > 0 and speeds[1]._paused > 0


def test_the_inverse_square_root_goes_by_steps() -> None:
    """9e-4 min(t / 4000, sqrt(4000 / t)) (Eureka-moments in Transformers, A.19)."""
    config = OptimConfig(lr=9e-4, schedule="inverse_sqrt", warmup_lr=0.0, warmup_steps=4, min_lr=4e-4)
    optimizer = config.optimizer([{"params": [torch.nn.Parameter(torch.ones(3))]}], 1)
    scheduler = config.scheduler(optimizer, epochs=4)
    seen = []
    for _ in range(24):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    published = [9e-4 * min(t / 4, (4 / t) ** 0.5) for t in range(1, 25)]
    assert seen[:20] == pytest.approx(published[:20]) and seen[20:] == [4e-4] * 4


def test_one_beta_of_two_is_refused_in_one_sentence() -> None:
    with pytest.raises(
        ValueError,
        match=r"optim\.options \{'betas': \[0\.9\]\} do not fit optim\.name=adamw: a list in them is too short",
    ):
        OptimConfig(lr=1e-3, options={"betas": [0.9]})


@pytest.mark.parametrize("matrices_only", [False, True])
def test_what_a_softmax_learns_is_not_pulled_to_zero(matrices_only: bool) -> None:
    optim = OptimConfig(lr=1e-3, weight_decay=1.0, decay_matrices_only=matrices_only)
    model = SetAttention(softmax=LearnableTemperature)
    decays = {id(one): group["weight_decay"] for group in optim.parameter_groups(model) for one in group["params"]}
    names = {name: decays.pop(id(parameter)) for name, parameter in model.named_parameters()}
    assert not decays and names["attention.rule.theta"] == 0
    assert {name for name, decay in names.items() if decay} == {
        name for name, one in model.named_parameters() if "theta" not in name and (one.dim() > 1 or not matrices_only)
    }
    # One group, as ever, where a softmax learns nothing or nothing decays.
    assert len(OptimConfig(lr=1.0, weight_decay=1.0, decay_matrices_only=False).parameter_groups(SetAttention())) == 1
    assert len(OptimConfig(lr=1.0, decay_matrices_only=False).parameter_groups(model)) == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"schedule": "none", "min_lr": 0.05}, "optim.schedule=none keeps the learning rate: leave optim.min_lr=0.05"),
        ({"schedule": "cosine", "min_lr": 0.5}, r"optim\.min_lr=0\.5 is above optim\.lr=0\.1"),
    ],
)
def test_a_least_rate_that_is_none_is_refused(options: dict, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        OptimConfig(lr=0.1, **options)


def test_a_warm_up_as_long_as_the_run_is_refused_where_it_leads_nowhere() -> None:
    optim = OptimConfig(lr=0.1, schedule="tanh", warmup_epochs=20)
    optimizer = optim.optimizer([{"params": [torch.nn.Parameter(torch.zeros(2))]}], 1)
    with pytest.raises(ValueError, match=r"optim\.schedule=tanh does not fit 20 epochs with optim\.warmup_epochs=20"):
        optim.scheduler(optimizer, 20)
    assert optim.scheduler(optimizer, 21) is not None


def test_temperatures_stay_in_32_bit_in_a_model_in_16() -> None:
    model = SetAttention(softmax=LearnableTemperature).bfloat16()
    assert {one.dtype for one in model.attention.rule.state_dict().values()} == {torch.float32}
    assert {one.dtype for name, one in model.named_parameters() if "rule" not in name} == {torch.bfloat16}
    assert SetAttention(softmax=LearnableTemperature).double().attention.rule.tau.dtype == torch.float64


def test_a_least_rate_above_that_of_a_small_batch_is_refused() -> None:
    config = OptimConfig(lr=1e-5, min_lr=1e-6, lr_reference_batch=512)
    optimizer = config.optimizer([{"params": [torch.nn.Parameter(torch.ones(3))]}], samples_per_step=32)
    with pytest.raises(
        ValueError, match=r"optim\.min_lr=1e-06 is above 6\.25e-07, the learning rate of this batch size"
    ):
        config.scheduler(optimizer, epochs=4)


def test_what_a_model_of_timm_spares_has_no_decay() -> None:
    model = VisionTransformer(img_size=8, patch_size=4, embed_dim=8, depth=1, num_heads=2, num_classes=3)
    optim = OptimConfig(lr=1e-3, weight_decay=0.05)
    for one in (model, replace_softmax(model, "learnable_temperature")):
        spared = [own for group in optim.parameter_groups(one) if not group["weight_decay"] for own in group["params"]]
        assert {id(model.pos_embed), id(model.cls_token)} <= {id(own) for own in spared}


OWN = """
from dataclasses import dataclass

import torch
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, ReduceLROnPlateau

from lab.training.optim import OptimConfig


@dataclass(frozen=True)
class Own(OptimConfig):
    period: int = 5

    def optimizer(self, groups, samples_per_step, may_fuse=True):
        return torch.optim.RMSprop(groups, lr=self.scaled_lr(samples_per_step))

    def scheduler(self, optimizer, epochs):
        # The least rate is read after training has begun.
        return LambdaLR(optimizer, lambda step: 1.0 if step < 1 else self.min_lr / self.lr)

    def loss(self, logits, target, label_smoothing=0.0):
        return torch.nn.functional.cross_entropy(logits.flatten(0, -2), target.flatten())


@dataclass(frozen=True)
class Passes(OptimConfig):
    def optimizer(self, groups, samples_per_step, may_fuse=True):
        return super().optimizer(groups, samples_per_step, may_fuse)

    def scheduler(self, optimizer, epochs):
        return super().scheduler(optimizer, epochs)

    def loss(self, logits, target, label_smoothing=0.0, scale=1.0):
        return super().loss(logits, target, label_smoothing)


@dataclass(frozen=True)
class Unfused(OptimConfig):
    def optimizer(self, groups, samples_per_step):
        return super().optimizer(groups, samples_per_step)


@dataclass(frozen=True)
class Text(OptimConfig):
    def optimizer(self, groups, samples_per_step, may_fuse=True):
        return "adam"


@dataclass(frozen=True)
class Misses(OptimConfig):
    def optimizer(self, groups, samples_per_step, may_fuse=True):
        return torch.optim.SGD(groups, lr=self.rate)


@dataclass(frozen=True)
class WithoutEpochs(OptimConfig):
    def scheduler(self, optimizer):
        return None


@dataclass(frozen=True)
class Function(OptimConfig):
    def scheduler(self, optimizer, epochs):
        return lambda step: 0.1


@dataclass(frozen=True)
class Plateau(OptimConfig):
    def scheduler(self, optimizer, epochs):
        return ReduceLROnPlateau(optimizer)


@dataclass(frozen=True)
class Short(OptimConfig):
    def scheduler(self, optimizer, epochs):
        return OneCycleLR(optimizer, max_lr=0.1, total_steps=1)


@dataclass(frozen=True)
class TwoGroups(OptimConfig):
    def scheduler(self, optimizer, epochs):
        return LambdaLR(optimizer, [lambda step: 1 / 0, lambda step: 1.0])


@dataclass(frozen=True)
class Unsmoothed(OptimConfig):
    def loss(self, logits, target):
        return super().loss(logits, target)


@dataclass(frozen=True)
class Each(OptimConfig):
    def loss(self, logits, target, label_smoothing=0.0):
        return torch.nn.functional.cross_entropy(logits, target, reduction="none")


@dataclass(frozen=True)
class Fails(OptimConfig):
    def loss(self, logits, target, label_smoothing=0.0):
        return logits[99].sum()
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Overrides that train with the optimisers of a user's module."""
    (tmp_path / "own_optim.py").write_text(OWN)
    for name in ("own", "passes"):
        path = tmp_path / "conf" / "optim" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"defaults: [deit, _self_]\n_target_: own_optim.{name.title()}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_optim", raising=False)
    short = ["data.numbers=3", "trainer.max_epochs=2", "threads=1", "logger=csv_only", "callbacks=eureka"]
    return [f"hydra.searchpath=[file://{tmp_path}/conf]", f"paths.runs={tmp_path}/runs", "experiment=reasoning", *short]


@pytest.mark.parametrize(
    ("option", "method"),
    [
        ("optim.name=lion", "optimizer"),
        ("optim.options.betas=[0.5,0.5]", "optimizer"),
        ("optim.schedule=cosine", "scheduler"),
        ("optim.warmup_epochs=3", "scheduler"),
        ("optim.label_smoothing=0.5", "loss"),
    ],
)
def test_an_option_that_an_own_optimiser_does_not_read_is_refused(own, option, method, tmp_path: Path) -> None:
    words = f"{option} is not read by own_optim.Own, which has {method}() of its own"
    with pytest.raises(LabError, match=f"^{re.escape(words)}"):
        run([*own, "optim=own", option])
    assert not runs_in(tmp_path)


def test_what_an_own_optimiser_reads_or_a_file_sets_is_taken(own) -> None:
    # The file sets all that deit sets; a subclass may leave the work to the lab's own methods.
    typed = ["optim.lr=1e-3", "optim.lr_reference_batch=9", "optim.weight_decay=0.1", "+optim.period=3"]
    spec = RunSpec.compose([*own, "optim=own", *typed, "optim.min_lr=1e-7", "~optim.options"])
    build_options(spec.config, spec.overrides)
    passed = ["optim.name=lion", "optim.options={betas: [0.5, 0.5]}", "optim.schedule=tanh", "optim.warmup_epochs=1"]
    spec = RunSpec.compose([*own, "optim=passes", *passed, "optim.min_lr=0", "optim.label_smoothing=0.5"])
    build_options(spec.config, spec.overrides)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("Unfused", r"^own_optim.Unfused.optimizer does not take .* def optimizer\(self, groups, .*, may_fuse\)"),
        ("Text", "^own_optim.Text.optimizer gives a str: let it return a torch.optim.Optimizer"),
        ("Misses", "^the optimiser of own_optim.Misses fails: AttributeError: .*own_optim.py, line"),
        ("WithoutEpochs", r"^own_optim.WithoutEpochs.scheduler does not take .* def scheduler\(self, optimizer, epo"),
        ("Function", "^own_optim.Function.scheduler gives a function: let it return a schedule of torch.optim.lr_s"),
        ("Plateau", "^own_optim.Plateau.scheduler gives a ReduceLROnPlateau, which waits for a metric"),
        ("Unsmoothed", "^own_optim.Unsmoothed.loss does not take"),
    ],
)
def test_an_own_optimiser_that_does_not_fit_is_refused_before_the_run(own, kind: str, words: str) -> None:
    config = RunSpec.compose([*own, f"optim._target_=own_optim.{kind}"]).config
    with pytest.raises(LabError, match=words), Ending().told():
        build_options(config)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("TwoGroups", "^the schedule of own_optim.TwoGroups fails: ValueError: Expected 1 lr_lambdas, but got 2"),
        ("Each", r"^own_optim.Each.loss gives \[2\] torch.float32 for two samples, where one number is needed"),
        ("Fails", "^own_optim.Fails.loss fails on two samples: IndexError: .*own_optim.py, line"),
        ("Short", "^the OneCycleLR of this run has total_steps=1, and training 2 steps: give it total_steps=2"),
    ],
)
def test_what_fails_in_an_own_optimiser_is_told_with_its_name(own, kind: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=words):
        run([*own, f"optim._target_=own_optim.{kind}"])
    assert not runs_in(tmp_path)
