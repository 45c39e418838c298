"""Seeds trained as one batched model end as their single runs do."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import SMALL, made_once, newest, set_status, summary_of
from torch import Tensor, nn

from lab.attention.rules.learnable import LearnableTemperature
from lab.callbacks.summary import RunSummary
from lab.console import LabError, counted
from lab.models.reasoner import Reasoner
from lab.models.softmaxes import SoftmaxFactory
from lab.runs.checkpoints import read_checkpoint, save_checkpoint
from lab.runs.metrics import read_metrics
from lab.train import run as train_with
from lab.training.seeds import train as training
from lab.training.seeds.module import Seed, SeedsModule
from lab.training.seeds.stack import Stack, join_optimizer_states, split_optimizer_state

REASONING = (
    "experiment=reasoning",
    "model.layer_norm=false",
    "data.numbers=4",
    "trainer.precision=64-true",
    "trainer.max_epochs=60",
    "callbacks.gradient_norms.every_n_steps=20",
    "checkpoints.every_n_steps=20",
)
VISION = (*SMALL, "model.drop_path_rate=0", "trainer.precision=64-true")

RESNET = (*(o for o in SMALL if not o.startswith("model.")), "trainer.precision=64-true")


def together(folder: Path, *overrides: str) -> dict[int, Path]:
    """Trains seeds together below ``folder``; run folder by seed, without what was set aside."""
    train_with([*overrides, f"paths.runs={folder}", "threads=1", "logger=csv_only"])
    return runs_below(folder)


def runs_below(folder: Path) -> dict[int, Path]:
    found = [path.parent for path in folder.rglob("config.yaml") if "~" not in path.parent.name]
    return {int(run.name.split("=")[1]): run for run in found}


def one_by_one(folder: Path, seeds: list[int], *overrides: str) -> dict[int, Path]:
    """The same seeds, each in its single run."""
    for seed in seeds:
        found = together(folder, *overrides, f"seed={seed}")
    return found


def weights(run: Path) -> dict:
    checkpoint = newest(run)
    return {"step": torch.tensor(checkpoint["global_step"]), **checkpoint["state_dict"]}


def assert_same_run(one: Path, other: Path, tolerance: float = 1e-8, named: bool = True) -> None:
    """Weights, metrics, Eureka-moment; the name of the setting too, unless told otherwise."""
    ours, theirs = weights(one), weights(other)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=tolerance, msg=f"{name}: {{}}".format)
    our_rows, their_rows = (
        # How fast it was is told once a window, which begins anew where a run goes on.
        [{k: v for k, v in row.items() if k != "samples_per_second"} for row in read_metrics(run / "metrics.csv")]
        for run in (one, other)
    )
    our_rows, their_rows = ([row for row in rows if row.keys() != {"step", "epoch"}] for rows in (our_rows, their_rows))
    assert [row.keys() for row in our_rows] == [row.keys() for row in their_rows]
    for mine, your in zip(our_rows, their_rows, strict=True):
        for name in mine:
            assert math.isclose(mine[name], your[name], rel_tol=1e-5, abs_tol=1e-6), (name, mine["step"])
    our_end, their_end = summary_of(one), summary_of(other)
    timings = {"wall_seconds"}
    for name in ("status", "steps", "epochs", "samples", "seed", "best", *(["name"] if named else [])):
        assert (
            our_end[name] == pytest.approx(their_end[name]) if name == "best" else our_end[name] == their_end[name]
        ), name
    assert {k: v for k, v in our_end["eureka"].items() if k not in timings} == pytest.approx(
        {k: v for k, v in their_end["eureka"].items() if k not in timings}
    )


@pytest.mark.parametrize(
    "setting",
    [
        (*REASONING, "softmax=softmax"),
        (*REASONING, "softmax=norm_softmax_heat_treatment", "softmax.schedule.by=step"),
        (*REASONING, "softmax=learnable_temperature", "softmax.granularity=head", "model.depth=2"),
        (*REASONING, "intervention=grad_scaling", "optim.schedule=cosine", "optim.warmup_epochs=5"),
        (*REASONING, "trainer.accumulate_grad_batches=1", "model.layer_norm=true", "optim.decay_matrices_only=true"),
        (*VISION, "softmax=norm_softmax"),
        (*RESNET, "model=resnet9", "model.width=2"),
        (*VISION, "model.patch_size=2", "softmax=norm_softmax_heat_treatment", "softmax.over=block"),
    ],
    ids=lambda setting: ",".join(setting[-2:]),
)
def test_each_seed_equals_its_single_run(setting: tuple[str, ...], tmp_path: Path) -> None:
    # Seeds that mix part at the first steps: a few epochs, into which schedules and warm-up fit, tell.
    epochs = 40 if "experiment=reasoning" in setting else 5
    setting = (*setting, f"trainer.max_epochs={epochs}")
    batched = together(tmp_path / "together", *setting, "seeds=[0,2]")
    single = one_by_one(tmp_path / "single", [0, 2], *setting)
    assert batched.keys() == single.keys() == {0, 2}
    for seed in single:
        assert_same_run(batched[seed], single[seed])
    assert weights(batched[0])["step"] == (40 if "experiment=reasoning" in setting else 20)
    assert summary_of(batched[0])["seeds_together"] == 2


STOP = ("callbacks.eureka.threshold=0.56", "callbacks.eureka.stop_after=10")
STOPPING = (*REASONING, *STOP, "optim.lr=2e-2", "trainer.max_epochs=100")


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Path:
    """Two seeds together, from start to end: tests that go on with them take a copy."""
    return made_once(tmp_path_factory, "pair", lambda folder: together(folder, *REASONING, "seeds=2"))


@pytest.fixture(scope="module")
def singles(tmp_path_factory) -> Path:
    """The seeds that stop early, each in its single run."""
    return made_once(tmp_path_factory, "singles", lambda folder: one_by_one(folder, [0, 1, 2], *STOPPING))


@pytest.fixture(scope="module")
def stopping(tmp_path_factory) -> Path:
    """The seeds that stop early, together."""
    return made_once(tmp_path_factory, "stopping", lambda folder: together(folder, *STOPPING, "seeds=3"))


@pytest.mark.parametrize(
    ("seeds", "compiling"),
    [([0, 1, 2], ()), ([0, 1], ("compile=true",))],
    ids=["eager", "compiled"],
)
@pytest.mark.usefixtures("traced_alone")
def test_seeds_that_stop_early_drop_out_and_the_others_go_on(
    seeds, compiling, singles: Path, tmp_path: Path, monkeypatch
) -> None:
    drop, told = SeedsModule.drop, []
    monkeypatch.setattr(SeedsModule, "drop", lambda self, gone: (drop(self, gone), told.append(self.describe())))
    batched = together(tmp_path / "together", *STOPPING, *compiling, f"seeds={seeds}")
    single = {seed: run for seed, run in runs_below(singles).items() if seed in seeds}
    steps = [summary_of(run)["steps"] for run in single.values()]
    assert len(set(steps)) > 1, f"the test needs seeds that end at different steps, not {steps}"
    for seed in single:
        assert_same_run(batched[seed], single[seed], named=not compiling)
    left, *_, moments = next(words for words in told if " of " in words[0])
    ended = steps.count(min(steps))
    assert left == f"{counted(len(seeds) - ended, 'seed')} of {len(seeds)}" and int(moments.split()[0]) >= ended


def test_a_killed_group_goes_on_where_it_was(pair: Path, tmp_path: Path) -> None:
    whole = runs_below(pair)
    again = runs_below(shutil.copytree(pair, tmp_path / "again"))
    for run in again.values():
        # As a kill after step 40 leaves it; one seed had not yet written that checkpoint's successor.
        checkpoints = sorted((run / "checkpoints").glob("last-*.ckpt"))
        assert [path.name for path in checkpoints] == ["last-000000040.ckpt", "last-000000060.ckpt"]
        if run.name == "seed=1":
            checkpoints[-1].unlink()
        set_status(run, "running")
    resumed = together(tmp_path / "again", *REASONING, "seeds=2")
    for seed in whole:
        assert_same_run(resumed[seed], whole[seed], tolerance=0)


def test_a_group_killed_at_its_first_checkpoint_begins_again_together(tmp_path: Path) -> None:
    once = (*REASONING, "trainer.precision=32-true", "checkpoints.every_n_steps=1000", "seeds=3")
    whole = together(tmp_path / "whole", *once)
    again = runs_below(shutil.copytree(tmp_path / "whole", tmp_path / "again"))
    for seed, run in again.items():
        if seed == 2:  # as a kill leaves it that came before its first checkpoint
            for path in (run / "checkpoints").iterdir():
                path.unlink()
        set_status(run, "running")
    resumed = together(tmp_path / "again", *once)
    for seed in whole:
        assert_same_run(resumed[seed], whole[seed], tolerance=0)


def test_a_seed_that_comes_later_keeps_the_others_where_they_are(tmp_path: Path) -> None:
    first = together(tmp_path, *REASONING, "trainer.max_epochs=40", "checkpoints.keep=1", "seeds=2")
    for run in first.values():
        set_status(run, "running")
    told: list[int] = []
    train_group = training._train_group

    def noted(group: Any) -> None:
        told.extend(path is not None for _, path in group)
        train_group(group)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "_train_group", noted)
        together(tmp_path, *REASONING, "trainer.max_epochs=40", "checkpoints.keep=1", "seeds=3")
    assert told == [False, True, True]


@pytest.mark.parametrize(
    ("every", "ended"), [(1, 0), (1000, 0), (1, 2)], ids=["with the others", "alone", "when the others have ended"]
)
def test_a_seed_killed_between_its_last_checkpoint_and_its_end_has_ended(
    every: int, ended: int, stopping: Path, tmp_path: Path, monkeypatch
) -> None:
    often = (*STOPPING, f"checkpoints.every_n_steps={every}", "seeds=3")
    whole = runs_below(stopping)
    finish, before = Seed.finish, iter(range(ended))

    def killed(seed: Seed, status: str, pruned: bool = False) -> None:
        if next(before, None) is not None:
            finish(seed, status, pruned)
            return
        monkeypatch.setattr(Seed, "finish", finish)
        raise SystemExit

    monkeypatch.setattr(Seed, "finish", killed)
    with pytest.raises(SystemExit):
        together(tmp_path / "again", *often)
    resumed = together(tmp_path / "again", *often)
    assert summary_of(whole[0])["steps"] > summary_of(whole[1])["steps"]
    # The seeds that are left train on without the one that has ended, and some CPUs round a smaller batch otherwise.
    tolerance = 0 if every == 1 else 1e-12
    for seed in whole:
        assert_same_run(resumed[seed], whole[seed], tolerance=tolerance)
        assert summary_of(resumed[seed])["seeds_together"] == 3


def test_a_group_that_goes_on_has_what_is_left_of_its_time(tmp_path: Path) -> None:
    limit = "trainer.max_time={minutes:30}"
    runs = together(tmp_path, *REASONING, "seeds=2", limit)
    path = sorted((runs[0] / "checkpoints").glob("last-*.ckpt"))[-1]
    elapsed = torch.load(path, weights_only=True)["callbacks"]["Timer"]["time_elapsed"]["train"]
    assert elapsed > 0
    for run in runs.values():
        for one in (run / "checkpoints").glob("last-*.ckpt"):
            checkpoint = read_checkpoint(one).content
            checkpoint["callbacks"]["Timer"]["time_elapsed"]["train"] = 1800.0
            save_checkpoint(checkpoint, one)
        sorted((run / "checkpoints").glob("last-*.ckpt"))[-1].unlink()
        set_status(run, "running")
    resumed = together(tmp_path, *REASONING, "seeds=2", limit)
    assert {summary_of(run)["steps"] for run in resumed.values()} == {40}


def test_seeds_save_at_the_same_steps_whatever_the_clock_says(tmp_path: Path) -> None:
    # Due by the clock at almost every step, each seed a little later than the one before it.
    setting = [o for o in REASONING if "every_n_steps=20" not in o or "checkpoints" not in o]
    runs = together(tmp_path, *setting, "checkpoints.every_minutes=0.0005", "checkpoints.keep=5", "seeds=3")
    steps = [sorted(path.name for path in (run / "checkpoints").glob("last-*")) for run in runs.values()]
    assert len(steps[0]) == 5
    assert steps[0] == steps[1] == steps[2]


def test_a_seed_goes_on_alone_from_the_groups_checkpoint(pair: Path, tmp_path: Path) -> None:
    run = runs_below(shutil.copytree(pair, tmp_path, dirs_exist_ok=True))[1]
    before = weights(run)
    sorted((run / "checkpoints").glob("last-*.ckpt"))[-1].unlink()
    set_status(run, "running")
    together(tmp_path, *REASONING, "seed=1")
    after = weights(run)
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, rtol=0, atol=1e-8)


def test_a_look_before_training_leaves_no_row(tmp_path: Path) -> None:
    runs = together(tmp_path, *REASONING, "seeds=2", "trainer.max_epochs=2", "trainer.num_sanity_val_steps=1")
    assert next(iter(read_metrics(runs[0] / "metrics.csv")))["step"] >= 0


@pytest.mark.parametrize("fused", [True, False])
def test_the_optimiser_of_a_single_number_is_joined(fused: bool) -> None:
    def trained(numbers: nn.Parameter, times: int) -> torch.optim.AdamW:
        optimizer = torch.optim.AdamW([numbers], fused=fused)
        for _ in range(times):
            numbers.grad = numbers.detach() + 1
            optimizer.step()
        return optimizer

    alone = [nn.Parameter(torch.tensor(float(start))) for start in range(2)]
    states = [trained(number, 3).state_dict() for number in alone]
    stacked = nn.Parameter(torch.stack([number.detach() for number in alone]))
    joined = torch.optim.AdamW([stacked], fused=fused)
    joined.load_state_dict(join_optimizer_states(states))
    stacked.grad = stacked.detach() + 1
    joined.step()
    whole = [nn.Parameter(torch.tensor(float(start))) for start in range(2)]
    for number in whole:
        trained(number, 4)
    torch.testing.assert_close(stacked.detach(), torch.stack([number.detach() for number in whole]))


def test_finished_seeds_are_not_run_again(tmp_path: Path) -> None:
    single = one_by_one(tmp_path, [1], *REASONING)
    written = summary_of(single[1])["written"]
    both = together(tmp_path, *REASONING, "seeds=2")
    assert summary_of(both[1])["written"] == written
    assert summary_of(both[0])["seeds_together"] == 1


def test_a_seed_that_breaks_fails_alone(tmp_path: Path, monkeypatch) -> None:
    sound = SeedsModule._logits

    def breaking(self: SeedsModule, batch: dict, training: bool) -> torch.Tensor:
        logits = sound(self, batch, training)
        factors = [math.nan if seed.number == 1 and self.current_epoch == 30 else 1.0 for seed in self.seeds]
        return logits * torch.tensor(factors)[:, None, None]

    monkeypatch.setattr(SeedsModule, "_logits", breaking)
    batched = together(tmp_path / "together", *REASONING, "seeds=3")
    failed = summary_of(batched[1])
    assert failed["status"] == "failed"
    assert "the loss is nan at step 31" in failed["error"] and failed["diverged"]
    assert [path.name for path in (batched[1] / "checkpoints").glob("last-*")] == ["last-000000020.ckpt"]
    single = one_by_one(tmp_path / "single", [0, 2], *REASONING)
    for seed in (0, 2):
        assert_same_run(batched[seed], single[seed])


def test_seeds_that_all_break_are_told_as_failed(tmp_path: Path) -> None:
    """In the same step of an epoch that validates."""
    broken = ("optim.lr=1e30", "optim.lr_reference_batch=null", "optim.warmup_epochs=0")
    runs = together(tmp_path, *VISION, *broken, "seeds=2")
    assert [summary_of(run)["status"] for run in runs.values()] == ["failed"] * 2
    assert all("the loss is" in summary_of(run)["error"] for run in runs.values())


def test_a_seed_that_fails_as_it_ends_has_failed(tmp_path: Path, monkeypatch) -> None:
    def full(self: RunSummary, trainer: Any, pl_module: Any) -> None:
        if self.what.seed == 1:
            raise LabError("no more room")

    monkeypatch.setattr(RunSummary, "on_fit_end", full)
    early = ("callbacks.eureka.threshold=0.02", "callbacks.eureka.stop_after=0")
    for name, typed in (("ends", ()), ("early", early)):
        runs = together(tmp_path / name, *REASONING, "trainer.max_epochs=20", *typed, "seeds=2")
        assert {seed: summary_of(run)["status"] for seed, run in runs.items()} == {0: "finished", 1: "failed"}
        assert summary_of(runs[1])["error"] == "no more room"


MY_CALLBACK = """
from lightning.pytorch.callbacks import Callback

class Tell(Callback):
    def setup(self, trainer, pl_module, stage):
        self.seed = pl_module.seed

    def on_train_epoch_end(self, trainer, pl_module):
        assert trainer.logger is trainer.loggers[0]
        pl_module.log("my/seed", float(self.seed))

class Saves(Tell):
    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        checkpoint["mine"] = 1
"""


def test_what_a_callback_logs_is_its_seeds_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_callback.py").write_text(MY_CALLBACK)
    monkeypatch.syspath_prepend(tmp_path)
    mine = ("+callbacks.mine={_target_: my_callback.Tell}", "trainer.max_epochs=2")
    runs = together(tmp_path / "runs", *REASONING, *mine, "seeds=2")
    with pytest.raises(LabError, match=r"Saves\.on_save_checkpoint is not called for seeds that train together"):
        together(tmp_path / "saves", *REASONING, mine[0].replace("Tell", "Saves"), "seeds=2")
    for seed, run in runs.items():
        assert [row["my/seed"] for row in read_metrics(run / "metrics.csv") if "my/seed" in row] == [seed, seed]


MY_OPTIMISER = """
import torch
from lab.training.optim import OptimConfig

class NormedGradient(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad /= p.grad.norm() + 1e-6
        return super().step(closure)

class Normed(OptimConfig):
    def optimizer(self, groups, samples_per_step, may_fuse=True):
        return NormedGradient(groups, lr=self.scaled_lr(samples_per_step))

class Plain(OptimConfig):
    elementwise = True

    def optimizer(self, groups, samples_per_step, may_fuse=True):
        return torch.optim.SGD(groups, lr=self.scaled_lr(samples_per_step))

class Squares(OptimConfig):
    def loss(self, logits, target, label_smoothing=0.0):
        return (logits.softmax(-1) - torch.nn.functional.one_hot(target, logits.shape[-1])).square().sum(-1).mean()
"""


@pytest.fixture
def my_optimiser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_optimiser.py").write_text(MY_OPTIMISER)
    monkeypatch.syspath_prepend(tmp_path)


def test_an_optimiser_of_ones_own_does_not_mix_seeds(my_optimiser, tmp_path: Path) -> None:
    """Unless its class says that it updates each number by itself, nobody knows."""
    own = "optim._target_=my_optimiser."
    with pytest.raises(LabError, match=r"if that of my_optimiser\.Normed does, write elementwise = True in the class"):
        together(tmp_path, *REASONING, f"{own}Normed", "seeds=2")
    few = (*REASONING, f"{own}Plain", "trainer.max_epochs=20")
    assert_same_run(together(tmp_path / "two", *few, "seeds=2")[1], one_by_one(tmp_path / "one", [1], *few)[1])


def test_a_loss_of_ones_own_is_that_of_training_and_validation(my_optimiser, tmp_path: Path) -> None:
    """About 1 - 1/4 for a model that guesses among four; cross-entropy would be about log 4."""
    for seed, run in together(tmp_path, *REASONING, "optim._target_=my_optimiser.Squares", "seeds=2").items():
        rows = read_metrics(run / "metrics.csv")
        for name in ("train/loss", "val/loss"):
            assert 0.5 < next(row[name] for row in rows if name in row) < 1.0, (seed, name)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ((*REASONING, "seeds=0"), "seeds=0 is wrong"),
        ((*REASONING, "seeds=[1,1]"), r"seeds=\[1, 1\] is wrong"),
        ((*REASONING, "seed=3", "seeds=[0,1]"), r"seed=3 is not one of seeds=\[0, 1\]"),
        ((*REASONING, "seeds=2", "trainer.devices=2"), "one device"),
        ((*REASONING, "seeds=2", "+trainer.gradient_clip_val=1.0"), "clip"),
        ((*REASONING, "seeds=2", "trainer.precision=16-true"), "cannot scale the loss"),
        ((*REASONING, "seeds=2", "+trainer.min_epochs=3"), "leave trainer.min_epochs out"),
        ((*REASONING, "seeds=2", "optim.name=lamb", "~optim.options.fused"), "updates each number independently"),
        (
            (*REASONING, "seeds=2", "optim.name=nadamw", "~optim.options.fused", "+optim.options.caution=true"),
            "caution uses the mean over a parameter",
        ),
        (
            (*REASONING, "seeds=2", "optim.name=nadamw", "~optim.options.fused", "+optim.options.clipping_threshold=1"),
            "clipping_threshold uses the root mean square over a parameter",
        ),
        ((*SMALL, "seeds=2"), "model.drop_path_rate=0"),
        (("experiment=imagenet100", "data.root=nowhere", "seeds=2"), "give data.workers=0"),
    ],
)
def test_what_would_mix_seeds_is_refused(overrides, words, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=words):
        together(tmp_path, *overrides)


RULES = """
import torch
from lab.attention.rule import TemperatureRule


class Takes(TemperatureRule):
    def inverse_temperature(self, q_BHND, k_BHMD, mask=None):
        return 1 / q_BHND.new_tensor(max(q_BHND.std().item(), 0.1))


class Branches(TemperatureRule):
    def inverse_temperature(self, q_BHND, k_BHMD, mask=None):
        if q_BHND.std() > 1:
            return 1 / self.tau
        return 2 / self.tau


class Draws(TemperatureRule):
    def inverse_temperature(self, q_BHND, k_BHMD, mask=None):
        return torch.rand(()) / self.tau
"""


@pytest.mark.parametrize(
    ("rule", "line"),
    [("Takes", r"line 8, `return 1 / .*item.*`"), ("Branches", r"line 13, `if "), ("Draws", "line 20, ")],
)
def test_a_rule_that_cannot_be_stacked_is_refused_by_its_line(
    rule: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_rules.py").write_text(RULES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LabError, match=rf"my_rules\.py, {line}") as refused:
        together(tmp_path / "runs", *REASONING, f"softmax._target_=my_rules.{rule}", "seeds=2")
    assert ".item(), if, a mask" in str(refused.value)
    assert "-m seed=0,1" in str(refused.value) and "\n" not in str(refused.value)
    assert not (tmp_path / "runs").exists()


def test_a_validation_that_cannot_be_made_is_told_before_the_first_step(tmp_path: Path) -> None:
    late = ("trainer.limit_val_batches=0.5", "trainer.check_val_every_n_epoch=10")
    with pytest.raises(LabError, match=r"check 0\.5 of the `val_dataloader`"):
        together(tmp_path / "runs", *REASONING, "seeds=2", *late)
    assert not (tmp_path / "runs").exists()


def test_sixteen_bits_are_too_few_for_the_softmaxes_of_seeds_as_for_one() -> None:
    models = [Reasoner(softmax=SoftmaxFactory(LearnableTemperature)) for _ in range(2)]
    stack = Stack(models)
    stack.to(torch.bfloat16)
    stack.bind()
    single = Reasoner(softmax=SoftmaxFactory(LearnableTemperature)).to(torch.bfloat16)
    ours, theirs = ({name: tensor.dtype for name, tensor in one.state_dict().items()} for one in (models[1], single))
    assert ours == theirs and {*ours.values()} == {torch.bfloat16, torch.float32}
    assert torch.equal(models[1].rules()[0].tau, models[1].rules()[0].tau.new_tensor(models[1].rules()[0].default_tau))


def test_the_state_of_a_seed_is_stored_alone_and_counts_stay_numbers() -> None:
    whole = {"state": {0: {"exp_avg": torch.zeros(3, 5)}}, "param_groups": []}
    own = split_optimizer_state(whole, 1, 3)["state"][0]["exp_avg"]
    assert own.untyped_storage().nbytes() == 5 * own.element_size()
    one = {"state": {0: {"mu_product": torch.tensor(0.7), "exp_avg": torch.zeros(2)}}, "param_groups": []}
    assert join_optimizer_states([one, one])["state"][0]["mu_product"].shape == ()


class Noisy(nn.Linear):
    """Adds random numbers of NumPy's generator in training."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + (float(np.random.rand()) if self.training else 0.0)


def test_random_numbers_of_other_generators_are_refused() -> None:
    before = np.random.get_state()[2]
    with pytest.raises(LabError, match=r"all would share the random numbers that .*Noisy draws from Python or NumPy"):
        Stack([Noisy(3, 2), Noisy(3, 2)]).check(torch.randn(2, 4, 3), "seed=0,1")
    assert np.random.get_state()[2] == before


def test_an_operator_that_cannot_be_batched_is_named() -> None:
    with pytest.raises(LabError, match=r"rule not implemented for aten::gru\..*; train .* \(-m seed=0,1\)$") as told:
        Stack([nn.GRU(3, 2), nn.GRU(3, 2)]).check(torch.randn(2, 4, 3), "-m seed=0,1")
    assert ".item()" not in str(told.value) and "stack.py" not in str(told.value)
