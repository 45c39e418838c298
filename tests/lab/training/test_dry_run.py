"""Data, model and loss that do not fit are told before training, by a sentence; what fits is left as it was."""

from __future__ import annotations

import copy
import errno
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from conftest import ROOT
from hydra.utils import instantiate
from torch import Tensor, nn

import lab
from lab.attention.layers import Attention
from lab.attention.rules.fixed import Fixed
from lab.console import LabError
from lab.datasets.loading import Batch, DataModule, StepLoader
from lab.datasets.seeding import generator_of
from lab.runs import outcome
from lab.runs.outcome import Ending
from lab.training.dry_run import DryRun
from lab.training.module import TwoStepModule
from lab.training.optim import OptimConfig


class Parity(DataModule):
    """Numbers from 0 to 7; y is the number modulo 4."""

    def __init__(self) -> None:
        super().__init__()
        self.batch_size = self.validation_size = self.epoch_size = 6

    def model_arguments(self) -> dict[str, int]:
        return {"num_classes": 4}

    def draw_train(self, epoch: int, step: int) -> Batch:
        x = torch.randint(8, (6,), generator=generator_of("parity", epoch, step))
        return {"x": x, "y": x % 4, "latents": {}}

    def draw_validation(self, index: int) -> Batch:
        return self.draw_train(-1, index)


class Table(nn.Module):
    """Looks its logits up; a batch norm and dropout would be moved by a pass in training mode."""

    def __init__(self, classes: int = 4, numbers: int = 8) -> None:
        super().__init__()
        self.table, self.norm, self.drop = nn.Embedding(numbers, classes), nn.BatchNorm1d(classes), nn.Dropout()

    def forward(self, x: Tensor) -> Any:
        return self.drop(self.norm(self.table(x)))


class Half(Table):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x)[:, 0]


class Detached(Table):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x).detach()


class Two(Table):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x), x


class NotANumber(Table):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x) * float("nan")


class Unpacks(Table):
    def forward(self, x: Tensor) -> Any:
        one, two, three = super().forward(x)
        return one + two + three


class Remembers(Table):
    """Holds state of every kind: what no checkpoint holds, and what one does."""

    hidden: Tensor
    saved: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.depth, self.draws = 0, 3, torch.Generator()
        self.mean = torch.zeros(4)
        self.shown, self.last, self.none = 0, torch.zeros(2, 4), math.nan
        self.register_buffer("hidden", torch.zeros(()), persistent=False)
        self.register_buffer("saved", torch.zeros(()))

    def forward(self, x: Tensor) -> Any:
        logits = super().forward(x)
        if self.training:
            self.steps += 1
            self.mean = logits.detach().mean(0)
            self.shown = logits.detach()[0]  # of another type than before
            self.last = logits  # with its graph
            self.hidden += torch.rand((), generator=self.draws)
            self.saved += 1
        return logits


class Saves(Table):
    """Counts its steps in a state of its own, which checkpoints hold."""

    steps = 0

    def get_extra_state(self) -> int:
        return self.steps

    def set_extra_state(self, state: int) -> None:
        self.steps = state

    def forward(self, x: Tensor) -> Any:
        self.steps = self.steps + self.training
        return super().forward(x)


class Refuses(Table):
    def forward(self, x: Tensor) -> Any:
        if x.numel(): raise ValueError("Refuses takes no numbers: give letters")  # fmt: skip  # noqa: E701


class InPlace(Table):
    def forward(self, x: Tensor) -> Any:
        logits = super().forward(x).exp()
        doubled = logits**2
        logits += 1
        return doubled


def begin(model: nn.Module, data: DataModule, accuracies: Sequence[str] = ()) -> TwoStepModule:
    """Fits for no step at all, so that only the trial runs."""
    module = TwoStepModule(model, OptimConfig(lr=1e-3), 4, accuracies)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = L.Trainer(accelerator="cpu", logger=False, max_steps=0, callbacks=[DryRun(module)], **quiet)
    trainer.fit(module, datamodule=data)
    return module


def test_what_fits_is_left_as_it_was() -> None:
    model = Table()
    module = begin(model, Parity())
    model.train().norm.eval()  # a part that is frozen stays so
    state, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    DryRun(module).on_fit_start(module.trainer, module)
    assert model.training and model.drop.training and not model.norm.training
    assert all(torch.equal(one, state[name]) for name, one in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random) and all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Table(classes=3), r"Table gives \[2, 3\] torch.float32 for two samples, where logits \[2, 4\] are needed"),
        (Half(), r"Half gives \[2\] torch.float32"),
        (Two(), "Two gives tuple for two samples"),
        (Detached(), "Detached cannot be trained: no gradient goes from its logits"),
        (NotANumber(), "NotANumber gives NaN or infinity for two samples, before any step"),
        (Table(numbers=1), "Table fails on two samples: IndexError: .* .*test_dry_run.py, line"),
        (
            Unpacks(),
            r"Unpacks fails on two samples: ValueError: not enough values .*test_dry_run.py, line \d+, `one, two",
        ),
        (InPlace(), "InPlace fails in the backward pass of two samples: RuntimeError: .*inplace"),
    ],
)
def test_a_model_that_does_not_fit_is_named(model: nn.Module, words: str) -> None:
    with pytest.raises(LabError, match=words):
        begin(model, Parity())


def test_what_changes_in_training_and_is_not_saved_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    model = Remembers()
    begin(model, Parity())
    told = capsys.readouterr().err
    for name in ("steps", "draws", "mean", "shown", "last", "hidden"):
        assert f"Remembers.{name} changes in a training step, and no checkpoint holds it" in told
    assert told.count("no checkpoint holds it") == 6
    assert model.steps == 0 and not model.hidden and model.training
    model.last = model(torch.arange(2))  # not to be copied: it has a graph
    capsys.readouterr()
    begin(model, Parity())
    assert capsys.readouterr().err == told
    begin(Table(), Parity())
    begin(Saves(), Parity())
    assert not capsys.readouterr().err


def test_what_a_model_refuses_is_told_in_its_own_words() -> None:
    with pytest.raises(ValueError, match=r"^Refuses takes no numbers: give letters$"):
        begin(Refuses(), Parity())


class Named(Parity):
    """Inputs by name, some of them in pairs."""

    def draw_train(self, epoch: int, step: int) -> Batch:
        batch = super().draw_train(epoch, step)
        return {**batch, "x": {"numbers": batch["x"], "twice": (2 * batch["x"], batch["x"][:, None].float())}}


def test_data_of_any_form_are_known_again() -> None:
    fingerprint = Named().fingerprint
    assert fingerprint.shape == (12, 4)  # six samples of validation and six of training; three inputs and the label
    assert torch.equal(fingerprint, Named().fingerprint) and torch.equal(2 * fingerprint[:, 0], fingerprint[:, 1])


def _broken(epoch: int, step: int) -> None:
    raise ValueError("picture.png is damaged: copy it again")


def test_an_error_of_a_process_that_loads_data_is_its_own_sentence() -> None:
    ending = Ending()
    with pytest.raises(LabError, match=r"^picture\.png is damaged: copy it again$"), ending.told():
        next(iter(StepLoader(_broken, steps=1, workers=1)))
    assert ending.reason == "picture.png is damaged: copy it again"


def _refuses() -> None:
    raise ValueError("row 17 is broken")


class Miscounts(nn.Module):
    """A constructor that fails by itself."""

    def __init__(self) -> None:
        super().__init__()
        one, two = range(3)
        assert one < two


@pytest.mark.parametrize(
    ("fails", "words"),
    [
        (_refuses, r"^row 17 is broken \(tests/lab/training/test_dry_run\.py, line \d+, `raise ValueError"),
        (lambda: {}["gone"], r"^KeyError: 'gone' \(tests/lab/training/test_dry_run\.py, line \d+, `"),
        (
            lambda: Path("gone.txt").read_text(),
            r"^FileNotFoundError: .*gone\.txt' \(.*test_dry_run\.py, line \d+, `",
        ),
        (
            lambda: instantiate({"_target_": f"{__name__}.Miscounts"}),
            r"Miscounts cannot be made: ValueError: .*test_dry_run\.py, line \d+, `one, two = range\(3\)`\)$",
        ),
        # Both are lines of the lab's, too: the user's own comes first.
        (
            lambda: Attention(8, 2, Fixed(2, 4))(torch.zeros(1, 3, 7)),
            r"^RuntimeError: .*\(tests/lab/training/test_dry_run\.py, line \d+, `lambda: Attention",
        ),
    ],
)
def test_an_error_of_one_s_own_code_is_told_with_its_line(fails: Callable[[], Any], words: str, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    ending = Ending()
    with pytest.raises(LabError, match=words), ending.told():
        fails()
    assert ending.status == "failed" and ending.reason is not None


def test_an_error_of_other_code_alone_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "users_line_of", lambda _: None)
    ending = Ending()
    with pytest.raises(KeyError, match="gone"), ending.told():
        {}["gone"]
    assert ending.reason == "KeyError: 'gone'"


def test_an_error_of_a_file_names_the_file_and_what_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "users_line_of", lambda _: None)
    (checkpoint := tmp_path / "checkpoints" / "last-000000010.ckpt").parent.mkdir()
    checkpoint.touch()
    words = (
        r"^metrics\.csv cannot be read or written \(File too large\): mend this and give the same command again, which "
        r"goes on from last-000000010\.ckpt$"
    )
    with pytest.raises(LabError, match=words), Ending(tmp_path).told():
        raise OSError(errno.EFBIG, "File too large", "metrics.csv")


@pytest.mark.parametrize(
    ("scored", "words"),
    [
        (lambda logits, batch: {"odd": (logits, batch["y"], None)}, "gives an accuracy 'odd', which is not among"),
        (lambda logits, batch: {"": (logits, batch["y"][:, None], None)}, r"gives \[2, 4\] logits for '', but labels"),
        (lambda logits, batch: {"": (logits, batch["latents"]["gone"], None)}, "scored fails on two samples: KeyError"),
    ],
)
def test_scores_that_do_not_fit_are_named(scored: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Parity, "scored", lambda self, logits, batch: scored(logits, batch))
    with pytest.raises(LabError, match=words):
        begin(Table(), Parity())


OWN_DATA = """
import torch
from pydantic import PositiveInt
from lab.datasets.loading import DataModule
from lab.datasets.seeding import generator_of

class Sums(DataModule):
    def __init__(self, classes: PositiveInt = 4, seed: int = 0) -> None:
        super().__init__()
        self.classes, self.seed = classes, seed
        self.batch_size = self.validation_size = self.epoch_size = 8

    def model_arguments(self):
        return {"tokens": 4, "context": 2, "num_classes": self.classes}

    def draw_train(self, epoch, step):
        x = torch.randint(4, (8, 2), generator=generator_of(self.seed, epoch, step))
        return {"x": x, "y": x.sum(1) % 4, "latents": {}}

    def draw_validation(self, index):
        return self.draw_train(-1, index)
"""


@pytest.fixture
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Overrides that train on data of a user, whose labels need four classes."""
    (tmp_path / "own_sums.py").write_text(OWN_DATA)
    (tmp_path / "conf" / "data").mkdir(parents=True)
    (tmp_path / "conf" / "data" / "sums.yaml").write_text("_target_: own_sums.Sums\nclasses: 4\nseed: ${seed}\n")
    monkeypatch.syspath_prepend(tmp_path)
    short = ["trainer.max_epochs=2", "threads=1", "logger=csv_only", f"paths.runs={tmp_path / 'runs'}"]
    return [f"hydra.searchpath=[file://{tmp_path}/conf]", "experiment=reasoning", "data=sums", *short]


@pytest.mark.parametrize("seeds", [[], ["seeds=2"]])
def test_a_run_that_cannot_be_trained_leaves_nothing(own_data: list[str], seeds: list[str], tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"run from 0 to 3, but .* num_classes=3: labels are 0 to 2"):
        lab.run([*own_data, *seeds, "data.classes=3"])
    assert not [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert {one.status for one in lab.run([*own_data, *seeds])} == {"finished"}
