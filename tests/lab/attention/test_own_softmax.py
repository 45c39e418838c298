"""A softmax of one's own: the page that tells how, and what is answered where its contract is not kept."""

from __future__ import annotations

import copy
import math
import pickle
import re
import shlex
import shutil
import sys
import textwrap
from contextlib import nullcontext as none
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, python, set_status, summary_of
from omegaconf import OmegaConf
from torch import Tensor, nn

from lab.attention.contract import check_rule
from lab.attention.functional import attend, attend_explicit
from lab.attention.layers import Attention, CrossAttention, Tap
from lab.attention.masks import Causal
from lab.attention.normaliser import Normaliser
from lab.attention.normalisers.softmax import Softmax
from lab.attention.rule import TemperatureRule
from lab.attention.rules.adaptive import AdaptiveTemperature
from lab.attention.rules.fixed import Fixed
from lab.attention.rules.learnable import LearnableTemperature
from lab.attention.rules.norm import NormSoftmax
from lab.config.compose import CONFIGS, compose_config
from lab.console import LabError
from lab.inspect import main as look
from lab.models.compact_vit import CompactViT
from lab.models.observable import rules_of
from lab.models.reasoner import Reasoner
from lab.models.set_attention import SetAttention
from lab.models.softmaxes import make_softmaxes
from lab.observation.recorder import Recorder
from lab.report.gather import gather
from lab.report.make import report
from lab.report.settings import settings
from lab.runs.outcome import Ending
from lab.runs.own_code import own_code
from lab.train import run as train_with
from lab.training.build import build_model

PAGE = (ROOT / "docs" / "softmax.md").read_text()
READY = sorted((CONFIGS / "softmax").glob("*.yaml"))


def blocks(language: str) -> list[str]:
    """Fenced blocks of the page in a language, as a reader copies them."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", PAGE, re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(text) for _, text in found]


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page's files in it."""
    for text in blocks("python"):
        named = re.match(r"# (\w+\.py)\n", text)
        assert named is not None
        (tmp_path / named[1]).write_text(text)
    (tmp_path / "mine" / "softmax").mkdir(parents=True)
    (tmp_path / "mine" / "softmax" / "range_softmax.yaml").write_text(blocks("yaml")[0])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "range_softmax", raising=False)
    return tmp_path


def test_the_look_of_the_page_is_what_it_says(mine: Path) -> None:
    assert "largest weight of a row" in python("look.py", folder=mine).stdout


def test_the_commands_of_the_page_train_and_their_runs_can_be_looked_into(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = ["trainer.max_epochs=20", "data.numbers=4", "threads=1", "logger=csv_only"]
    for line in "".join(blocks("bash")).splitlines():
        (summary,) = train_with([*shlex.split(line)[3:], *short, f"paths.runs={mine / 'unnamed'}"])
        assert summary.finished
    named = ["--config-dir", "mine", "experiment=reasoning", "softmax=range_softmax", "softmax.fraction=0.5"]
    python("-m", "lab.train", *named, "softmax/schedule=heat_treatment", *short, folder=mine)
    (run,) = (path.parent for path in mine.glob("runs/reasoning/range_softmax,*/seed=0/summary.json"))
    assert summary_of(run)["softmax"] == "range_softmax"
    monkeypatch.chdir(mine)
    words = [
        "--config-dir",
        "mine",
        f"run={run}",
        "diagnostics=[temperature_in_use]",
        "softmax=range_softmax",
        "trust=range_softmax",
        "out=look",
    ]
    monkeypatch.setattr(sys, "argv", ["lab.inspect", *words])
    look()
    assert (mine / "look" / "diagnostics" / "temperature_in_use.csv").exists()


def test_seeds_train_together_under_the_rule_of_the_page(mine: Path) -> None:
    overrides = ["experiment=reasoning", "softmax._target_=range_softmax.RangeSoftmax", "data.numbers=4"]
    summaries = train_with([*overrides, "trainer.max_epochs=3", "seeds=2", f"paths.runs={mine}", "threads=1"])
    assert [own.status for own in summaries] == ["finished", "finished"]
    # Everywhere by the name of the class, and not as the plain softmax whose place it takes.
    assert summaries[0].softmax == "RangeSoftmax"
    assert summaries[0].name == "reasoning/RangeSoftmax,data.numbers=4,trainer.max_epochs=3/seed=0"
    (setting,) = settings(gather(mine / "reasoning").runs)
    assert setting.name == "RangeSoftmax, data.numbers=4, trainer.max_epochs=3"


def test_a_rule_that_was_changed_since_its_run_is_told(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    typed = ["experiment=reasoning", "softmax._target_=range_softmax.RangeSoftmax", "data.numbers=4", "logger=csv_only"]
    typed += ["trainer.max_epochs=3", f"paths.runs={mine}", "threads=1"]
    train_with(typed)
    train_with(typed)
    assert "range_softmax" not in capsys.readouterr().err
    with (mine / "range_softmax.py").open("a") as file:
        file.write("# changed\n")
    train_with(typed)
    told = capsys.readouterr().err
    assert "range_softmax changed since" in told and "force=true runs it anew" in told and "finished already" in told
    targets = ("range_softmax.RangeSoftmax", "timm.VGG", "lab.datasets.vision.VisionData", "gone.Away")
    assert set(own_code({f"{name}._target_": name for name in targets})) == {"range_softmax"}
    # A report tells it of a setting: here, one run that goes on with the changed rule.
    (run,) = (path.parent for path in mine.rglob("summary.json"))
    (setting,) = settings(gather(mine / "reasoning").runs)
    assert not setting.changed_code
    set_status(run, "stopped")
    train_with(typed)
    (setting,) = settings(gather(mine / "reasoning").runs)
    assert setting.changed_code == ("range_softmax",) and len(setting.first.summary.own_code["range_softmax"]) == 2
    report([mine / "reasoning"], out=mine / "report")
    line = "The runs of RangeSoftmax, data.numbers=4, trainer.max_epochs=3 were trained with different versions of"
    assert line in (mine / "report" / "report.md").read_text()


def test_a_failed_run_that_starts_anew_says_nothing_of_changed_code(mine: Path, capsys) -> None:
    typed = ["experiment=reasoning", "softmax._target_=range_softmax.RangeSoftmax", "data.numbers=4", "logger=csv_only"]
    typed += ["trainer.max_epochs=3", f"paths.runs={mine}", "threads=1"]
    train_with(typed)
    (run,) = (path.parent for path in mine.rglob("summary.json"))
    set_status(run, "failed")
    shutil.rmtree(run / "checkpoints")
    with (mine / "range_softmax.py").open("a") as file:
        file.write("# mended\n")
    capsys.readouterr()
    (summary,) = train_with(typed)
    assert summary.status == "finished" and len(summary.own_code["range_softmax"]) == 1
    assert "changed since" not in capsys.readouterr().err


@pytest.mark.parametrize("masked", [False, True])
def test_the_rule_of_the_page_is_its_equation(mine: Path, masked: bool) -> None:
    from range_softmax import RangeSoftmax  # type: ignore[import-not-found]

    rule = RangeSoftmax(4, 16, tau=3.0, fraction=0.5)
    check_rule(rule)
    assert (rule.couples_queries, rule.weighs_channels) == (False, False)
    q, k, v = torch.randn(3, 2, 4, 24, 16, generator=torch.Generator().manual_seed(0)).unbind()
    mask = torch.ones(24, 24, dtype=torch.bool).tril(2) if masked else None
    torch.testing.assert_close(
        attend(q, k, v, rule, mask), attend_explicit(q, k, v, rule, mask).z, rtol=1e-4, atol=1e-5
    )
    scores = (q @ k.transpose(-2, -1))[1, 2, 7, : 10 if masked else 24]
    want = 1 / min(0.5 * float(scores.max() - scores.min()), 3.0)
    assert rule.inverse_temperature(q, k, mask)[1, 2, 7].item() == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("depth", [1, 3])
def test_the_rule_of_the_page_is_taken_by_models_of_any_depth(mine: Path, depth: int) -> None:
    model: Any = built("range_softmax.RangeSoftmax", model={**VIT, "depth": depth}, fraction=0.5)
    assert [rule.fraction for rule in model.rules()] == [0.5] * depth
    assert model(torch.randn(2, 3, 8, 8)).isfinite().all()


@pytest.mark.parametrize("path", READY, ids=lambda path: path.stem)
def test_every_ready_softmax_stands_in_the_table_with_its_options(path: Path) -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith(f"| `{path.stem}` |")]
    assert len(rows) == 1, f"docs/softmax.md has {'several rows' if rows else 'no row'} for {path.stem}"
    row = rows[0]
    config = compose_config([f"softmax={path.stem}"]).softmax
    assert in_the_table(config) in row
    options = [name for name in config if name != "normaliser" and (name != "schedule" or config.schedule is not None)]
    if config.normaliser is not None:
        assert in_the_table(config.normaliser) in row
        options += [f"normaliser.{name}" for name in config.normaliser if not name.startswith("_")]
    missing = [name for name in options if not name.startswith("_") and f"`{name}`" not in row]
    assert not missing, f"docs/softmax.md does not name these options of {path.stem}: {missing}"


def in_the_table(config: Any) -> str:
    """A class as the table writes it, whose column is of lab.attention."""
    return f"`{config._target_.removeprefix('lab.attention.')}`"


def test_the_table_names_nothing_that_is_not_there() -> None:
    named = re.findall(r"^\| `(\w+)` \|.*`rules\.", PAGE, re.MULTILINE)
    made = re.findall(r"^\| `softmax/normaliser=(\w+)` \|", PAGE, re.MULTILINE)
    normalisers = sorted(path.stem for path in (CONFIGS / "softmax/normaliser").glob("*.yaml"))
    assert sorted(made) == normalisers, "docs/softmax.md needs one row for each normaliser"
    assert sorted(named) == [path.stem for path in READY]
    schedule = compose_config(["softmax=heat_treatment"]).softmax.schedule
    paragraph = next(text for text in PAGE.split("\n\n") if text.startswith("Heat treatment is a schedule"))
    assert all(name.startswith("_") or f"{name}`" in paragraph for name in schedule)


@pytest.mark.parametrize(
    "name", [n for kind in (TemperatureRule, Normaliser) for n in vars(kind) if not n.startswith("_")]
)
def test_all_of_the_contract_stands_on_the_page(name: str) -> None:
    assert f"`{name}" in PAGE


READY_RULES = [
    Fixed,
    NormSoftmax,
    partial(NormSoftmax, over="block", tau=1e6),
    partial(NormSoftmax, statistic="std", tau=1e6),
    # Caps below and far above all scores.
    *(partial(NormSoftmax, over="block", tau=tau) for tau in (0.01, 40.0)),
    partial(NormSoftmax, statistic="range"),
    partial(NormSoftmax, statistic="mad", over="block", tau=40.0),
    *(partial(LearnableTemperature, granularity=g, initial=0.7) for g in ("layer_head", "layer", "head", "channel")),
    AdaptiveTemperature,
    partial(AdaptiveTemperature, when="always", tau=0.3),
]


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 1), (4, 4), (2, 3), (4, 64)])
@pytest.mark.parametrize("make", READY_RULES, ids=str)
def test_ready_rules_pass_and_are_left_as_they_were(make: Any, heads: int, head_dim: int) -> None:
    rule = make(heads=heads, head_dim=head_dim)
    state, random = {k: v.clone() for k, v in rule.state_dict().items()}, torch.get_rng_state()
    check_rule(rule)
    # A channel alone is a head.
    channels = getattr(rule, "granularity", None) == "channel" and head_dim > 1
    assert (rule.couples_queries, rule.weighs_channels) == (getattr(rule, "over", None) == "block", channels)
    assert rule.training and torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(value, state[name]) for name, value in rule.state_dict().items())
    assert all(parameter.grad is None for parameter in rule.parameters())


class Rule(TemperatureRule):
    """A rule whose beta is given."""

    def __init__(self, heads: int, head_dim: int, tau: float | None = None, beta: Any = None) -> None:
        super().__init__(heads, head_dim, tau)
        self.beta = beta

    def inverse_temperature(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.beta(q_BHND, k_BHMD)


class ByLength(TemperatureRule):
    def inverse_temperature(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        return 1 / q_BHND.norm(dim=-1, keepdim=True)


class Unmade(TemperatureRule):
    def __init__(self, power: float = 1.0) -> None:
        super().__init__()


class NotHanded(TemperatureRule):
    def __init__(self, heads: int, head_dim: int, tau: float | None = None) -> None:
        super().__init__()


class NotCalled(TemperatureRule):
    def __init__(self, heads: int, head_dim: int, tau: float | None = None) -> None:
        self.power = 2.0


class NoBeta(TemperatureRule):
    pass


class NoMask(TemperatureRule):
    def inverse_temperature(self, q: Tensor, k: Tensor) -> Tensor:  # type: ignore[override]
        return 1 / self.tau


class NoRule(nn.Module):
    def __init__(self, heads: int, head_dim: int, tau: float | None = None) -> None:
        super().__init__()


class Counting(TemperatureRule):
    """Counts its calls in training, in a buffer."""

    def __init__(self, heads: int, head_dim: int, tau: float | None = None) -> None:
        super().__init__(heads, head_dim, tau)
        self.register_buffer("calls", torch.zeros(()))
        self.calls: Tensor

    def inverse_temperature(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        self.calls += self.training
        return 1 / self.tau


class AlwaysCounting(Counting):
    """Counts in validations, too."""

    def inverse_temperature(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        self.calls += 1
        return 1 / self.tau


class Assigning(Counting):
    """Counts in training, but not in place."""

    def inverse_temperature(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        self.calls = self.calls + 1 if self.training else self.calls
        return 1 / self.tau


class Cached(TemperatureRule):
    """Keeps what is not saved: a table that is made when it is needed; and a number that is none yet."""

    def __init__(self, heads: int, head_dim: int, tau: float | None = None) -> None:
        super().__init__(heads, head_dim, tau)
        self.register_buffer("table", None, persistent=False)
        self.register_buffer("seen", torch.tensor(float("nan")))

    def inverse_temperature(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        self.table = torch.arange(1.0, k_BHMD.shape[-2] + 1).log()
        return self.table[-1] / self.tau


class SaysNothingOfKeys(TemperatureRule):
    reads_keys = False

    def inverse_temperature(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        return k_BHMD.std() / self.tau


class Untrained(TemperatureRule):
    """Has a factor that looks trained."""

    def __init__(self, heads: int, head_dim: int, tau: float | None = None) -> None:
        super().__init__(heads, head_dim, tau)
        self.gain = torch.ones(heads, 1, 1, requires_grad=True)

    def inverse_temperature(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.gain / self.tau


class Endless(TemperatureRule):
    def inverse_temperature(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        return 1 / (0 * self.tau)


@pytest.mark.parametrize(
    ("beta", "words"),
    [
        (lambda q, k: q.norm(dim=-1), "returns [2, 4, 3] for queries [2, 4, 3, 16] and keys [2, 4, 5, 16]"),
        (lambda q, k: k.norm(dim=-1, keepdim=True), "returns [2, 4, 5, 1] for queries"),
        (lambda q, k: (q @ k.transpose(-2, -1)).abs(), "it must be broadcastable to the queries, as is [2, 4, 3, 1]"),
        (lambda q, k: 0.25, "must return a tensor of real numbers, not float"),
        (
            lambda q, k: torch.ones((), dtype=torch.int64),
            "must return a tensor of real numbers, not a tensor of torch.int64",
        ),
        (lambda q, k: None, "not NoneType"),
        (lambda q, k: 1 / q.mul_(2).norm(dim=-1, keepdim=True), "changes the queries or keys that it is given"),
        (lambda q, k: 1 / k.add_(1).std(), "changes the queries or keys that it is given"),
        (lambda q, k: (q * k).sum(-1, keepdim=True), "fails on queries [2, 4, 3, 16] and keys [2, 4, 5, 16]"),
    ],
)
def test_a_beta_that_is_none_is_answered_in_one_sentence(beta: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as told:
        check_rule(Rule(4, 16, beta=beta))
    assert "test_own_softmax.Rule.inverse_temperature" in str(told.value) and "\n" not in str(told.value)


def test_a_number_per_head_is_not_taken_for_one_per_channel_where_there_are_as_many() -> None:
    """As in the reasoning model: four heads of four channels."""
    words = re.escape("returns [4], and there are as many heads as channels: return [4, 1, 1], one number per head, or")
    with pytest.raises(ValueError, match=words):
        check_rule(Rule(4, 4, beta=lambda q, k: torch.linspace(0.5, 1, 4)))
    for shape in ((4, 1, 1), (1, 1, 4)):
        check_rule(Rule(4, 4, beta=lambda q, k, shape=shape: torch.linspace(0.5, 1, 4).view(shape)))


def by_length(q: Tensor, k: Tensor) -> Tensor:
    return 1 / q.norm(dim=-1, keepdim=True)


class Gated(TemperatureRule):
    """Depends on the other queries as soon as its gate has learned to open."""

    def __init__(self, heads: int, head_dim: int, tau: float | None = None) -> None:
        super().__init__(heads, head_dim, tau)
        self.gate = nn.Parameter(torch.zeros(()))

    def inverse_temperature(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        return (1 + self.gate * q_BHND.square().mean((-2, -1), keepdim=True)) / self.tau


class InTraining(Rule):
    """Depends on the other queries in training alone."""

    def inverse_temperature(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        return 1 / (q_BHND.std((-2, -1), keepdim=True) if self.training else self.tau)


# A rule's beta -> whether it couples queries, and whether it weighs channels.
FOUND: dict[str, tuple[Any, tuple[bool, bool]]] = {
    "a number": (partial(Rule, beta=lambda q, k: torch.tensor(0.3)), (False, False)),
    "number of keys": (partial(Rule, beta=lambda q, k: torch.tensor(math.log(k.shape[-2]))), (False, False)),
    "spread of the scores": (partial(Rule, beta=lambda q, k: 1 / (q @ k.mT).std(-1, keepdim=True)), (False, False)),
    "all queries": (partial(Rule, beta=lambda q, k: 1 / q.std((-2, -1), keepdim=True)), (True, True)),
    "number of queries": (partial(Rule, beta=lambda q, k: torch.tensor(1.0 + q.shape[-2])), (True, False)),
    "place among queries": (
        partial(Rule, beta=lambda q, k: torch.arange(1.0, q.shape[-2] + 1).view(-1, 1)),
        (True, False),
    ),
    "all scores, below a low tau": (partial(NormSoftmax, over="block", tau=1e-4), (True, False)),
    "training alone": (InTraining, (True, True)),
    "a closed gate": (Gated, (True, True)),
    "length of the query": (partial(Rule, beta=by_length), (False, True)),
    # What is only shifted by the bias of the keys is no other softmax, but another largest score.
    "largest score": (partial(Rule, beta=lambda q, k: (q @ k.mT).amax(-1, keepdim=True)), (False, True)),
    "a number a channel": (partial(Rule, beta=lambda q, k: torch.linspace(0.5, 1, 16).expand(4, 1, 16)), (False, True)),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_beta_depends_on_is_found(name: str) -> None:
    make, found = FOUND[name]
    rule = make(heads=4, head_dim=16)
    assert rule.couples_queries in (None, found[0]) and rule.weighs_channels is None
    check_rule(rule)
    assert (rule.couples_queries, rule.weighs_channels) == found


@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("name", FOUND)
def test_a_layer_takes_no_short_cut_that_would_change_its_numbers(name: str, checked: bool) -> None:
    rule = FOUND[name][0](heads=4, head_dim=16)
    if checked:
        check_rule(rule)
    for parameter in rule.parameters():
        nn.init.constant_(parameter, 0.5)
    # float64, since a low tau makes rounding large.
    x = torch.randn(3, 20, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    layer = Attention(64, 4, rule).double()
    torch.testing.assert_close(layer.last(x), layer(x)[:, -1:], rtol=1e-4, atol=1e-5)
    cross = CrossAttention(64, 4, rule).double()
    alone = cross(x[:, :1], x)
    cross.tap = Tap(explicit=True)
    torch.testing.assert_close(alone, cross(x[:, :1], x), rtol=1e-4, atol=1e-5)


def test_a_line_declares_what_beta_depends_on() -> None:
    class Careful(Rule):
        couples_queries = True
        weighs_channels = True

    class Wrong(Rule):
        couples_queries = False

    class WrongToo(Rule):
        weighs_channels = False

    rule = Careful(4, 16, beta=lambda q, k: torch.tensor(0.3))
    check_rule(rule)
    assert (rule.couples_queries, rule.weighs_channels) == (True, True)
    with pytest.raises(
        ValueError, match="changes with the other queries, but the class declares couples_queries = False"
    ):
        check_rule(Wrong(4, 16, beta=lambda q, k: 1 / q.std((-2, -1), keepdim=True)))
    with pytest.raises(ValueError, match="more than the differences between the scores"):
        check_rule(WrongToo(4, 16, beta=by_length))
    with pytest.raises(ValueError, match="is one number per channel"):
        check_rule(WrongToo(4, 16, beta=lambda q, k: torch.ones(4, 1, 16)))


def test_a_query_that_depends_on_its_place_alone_is_coupled() -> None:
    """Places from the end: the last query alone has its own, the first one does not."""

    def later(q: Tensor, k: Tensor) -> Tensor:
        return torch.arange(q.shape[2], 0, -1, dtype=q.dtype)[:, None]

    class ByPlace(TemperatureRule):
        """Learns a temperature for every place from the end, all equal at the start."""

        def __init__(self, heads: int, head_dim: int) -> None:
            super().__init__(heads, head_dim)
            self.of_place = torch.nn.Parameter(torch.zeros(64))

        def inverse_temperature(self, q: Tensor, k: Tensor, mask: Any = None) -> Tensor:
            return 1 + self.of_place[-q.shape[2] :, None]

    for rule in (Rule(4, 16, beta=later), ByPlace(4, 16)):
        check_rule(rule)
        assert rule.couples_queries is True


def test_a_rule_that_draws_random_numbers_is_not_compared() -> None:
    before = torch.get_rng_state()
    rule = Rule(4, 16, beta=lambda q, k: torch.rand(*q.shape[:3], 1))
    check_rule(rule)
    assert torch.equal(before, torch.get_rng_state())
    # Nothing is known of it, so no short cut is taken.
    assert (rule.couples_queries, rule.weighs_channels) == (True, True)


class Hides(Fixed):
    def __init__(self, heads: int, head_dim: int, tau: float | None = None, share: float = 0.5) -> None:
        super().__init__(heads, head_dim, tau)
        self.share = share  # type: ignore[method-assign, assignment]


class HidesTrain(Fixed):
    def __init__(self, heads: int, head_dim: int, tau: float | None = None) -> None:
        super().__init__(heads, head_dim, tau)
        self.train = True  # type: ignore[assignment,method-assign]


class NotANumber(TemperatureRule):
    def inverse_temperature(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.tau * float("nan")


class Tells(Fixed):
    def temperatures(self) -> dict[str, Tensor]:
        return {"mine": 3.0}  # type: ignore[dict-item]


class Spread(TemperatureRule):
    """One over the spread of a query's scores, of all keys whatever the mask says."""

    def inverse_temperature(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = q_BHND @ k_BHMD.transpose(-2, -1)
        if mask is not None and self.reads_mask:
            return 1 / scores.masked_fill(~mask, 0).std(-1, keepdim=True)
        return 1 / scores.std(-1, keepdim=True)

    reads_mask = False


class SpreadOfSeen(Spread):
    reads_mask = True


def test_a_rule_that_reads_masked_keys_is_refused_under_a_mask_alone() -> None:
    q_BHND, k_BHMD, v_BHMD = torch.randn(3, 1, 2, 5, 8).unbind(0)
    masks = (Causal(5, 5, q_BHND.device), torch.ones(5, 5, dtype=torch.bool).tril())
    for make, refused in ((Spread, True), (SpreadOfSeen, False), (NormSoftmax, False)):
        rule, normaliser = next(make_softmaxes(make, 2, 8))
        assert rule.reads_masked_keys is refused
        assert attend(q_BHND, k_BHMD, v_BHMD, rule, None, normaliser).isfinite().all()
        for mask in masks:
            with pytest.raises(ValueError, match="Spread change with keys that the mask hides") if refused else none():
                attend(q_BHND, k_BHMD, v_BHMD, rule, mask, normaliser)


def plain_rule(heads: int, head_dim: int, tau: float | None = None) -> Fixed:
    return Fixed(heads, head_dim, tau)


def plain_normaliser(heads: int, head_dim: int) -> Softmax:
    return Softmax(heads, head_dim)


def test_functions_may_make_rules_and_normalisers() -> None:
    made = built("plain_rule", normaliser={"_target_": f"{__name__}.plain_normaliser", "_partial_": True})
    assert len(rules_of(made)) == 2


class InAList(nn.Module):
    """Keeps its layers where torch does not find them."""

    def __init__(self, num_classes: int, softmax: Any = None) -> None:
        super().__init__()
        softmaxes = make_softmaxes(softmax, 2, 8)
        self.layers = [Attention(16, 2, *next(softmaxes)) for _ in range(2)]


class NoModule:
    def __init__(self, num_classes: int) -> None: ...


class Needs(nn.Module):
    def __init__(self, num_classes: int, width: int, softmax: Any = None) -> None:
        super().__init__()


def test_models_that_cannot_work_are_refused_where_they_are_built() -> None:
    plain = "lab.attention.rules.fixed.Fixed"
    with pytest.raises(LabError, match="InAList makes 2 softmaxes, but has 0 attention layers in its modules"):
        built(plain, model={"_target_": f"{__name__}.InAList"})
    with pytest.raises(LabError, match="Needs needs width, which neither this data gives nor the config"):
        built(plain, model={"_target_": f"{__name__}.Needs"})
    with pytest.raises(LabError, match=r"is no model: derive it from torch\.nn\.Module"):
        built(plain, model={"_target_": f"{__name__}.NoModule"})
    with pytest.raises(ValueError, match="make_softmaxes gives softmaxes without end"):
        for _ in make_softmaxes(None, 2, 8):
            pass


class Deaf(nn.Module):
    """Takes a softmax and makes nothing of it."""

    def __init__(self, num_classes: int, softmax: Any = None) -> None:
        super().__init__()


class Forgetful(CompactViT):
    """Takes a softmax and makes its layers without it."""

    def __init__(self, num_classes: int, softmax: Any = None) -> None:
        super().__init__(image_size=8, depth=1, heads=2, head_dim=4, num_classes=num_classes)


@pytest.mark.parametrize("kind", [Deaf, Forgetful])
def test_a_softmax_that_a_model_would_not_use_is_refused(kind: type) -> None:
    model = {"_target_": f"{__name__}.{kind.__name__}"}
    plain = "lab.attention.rules.fixed.Fixed"
    assert isinstance(built(plain, model=model), kind)
    for name, options in ((plain, {"tau": 2.0}), ("lab.attention.rules.norm.NormSoftmax", {})):
        with pytest.raises(LabError, match="takes a softmax and makes no rule of it"):
            built(name, model=model, **{"tau": None, **options})


class Passing(CompactViT):
    """Hands all that it is given on to a model with a softmax."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**VIT_OPTIONS, **options)


class Open(nn.Module):
    """Takes whatever it is given, and has no attention."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options


def test_options_by_any_name_take_what_the_data_gives_and_the_softmax() -> None:
    norm = "lab.attention.rules.norm.NormSoftmax"
    passing = built(norm, model={"_target_": f"{__name__}.Passing"})
    assert [type(rule) for rule in rules_of(passing)] == [NormSoftmax] * 2
    model = {"_target_": f"{__name__}.Open"}
    whole: Any = built("lab.attention.rules.fixed.Fixed", model=model, facts={"num_classes": 3, "tokens": 5})
    assert whole.options.keys() == {"num_classes", "tokens", "softmax"}
    with pytest.raises(LabError, match="takes a softmax and makes no rule of it"):
        built(norm, model=model)


VIT_OPTIONS = {"image_size": 8, "patch_size": 4, "depth": 2, "heads": 2}
VIT = {"_target_": "lab.models.compact_vit.CompactViT", **VIT_OPTIONS}
VIT_FACTS = {"num_classes": 3}


def built(
    name: str, partial: bool = True, model: dict[str, Any] = VIT, facts: dict[str, int] = VIT_FACTS, **options: Any
) -> nn.Module:
    target = f"{__name__}.{name}" if "." not in name else name
    softmax = OmegaConf.create({"_target_": target, "tau": None, **({"_partial_": True} if partial else {}), **options})
    return build_model(OmegaConf.create(model), softmax, facts)


@pytest.mark.parametrize(
    ("name", "partial", "words"),
    [
        (
            "lab.attention.rules.fixed.Fixed",
            False,
            "lab.attention.rules.fixed.Fixed needs the line _partial_: true",
        ),
        ("Unmade", True, "write def __init__(self, heads, head_dim, tau=None, power: 'float' = 1.0)"),
        ("NotHanded", True, "must hand heads, head_dim and tau on: super().__init__(heads, head_dim, tau)"),
        ("NotCalled", True, "must hand heads, head_dim and tau on: super().__init__(heads, head_dim, tau)"),
        ("NoBeta", True, "NoBeta does not define inverse_temperature(self, q_BHND, k_BHMD, mask=None)"),
        ("NoMask", True, "inverse_temperature(q, k, mask) fails on"),
        ("Hides", True, "Hides stores something of its own as share, which is a method of every TemperatureRule"),
        ("HidesTrain", True, "HidesTrain stores something of its own as train, which is a method of every Temp"),
        ("NotANumber", True, "NotANumber.inverse_temperature returns NaN or infinity for plain queries and keys"),
        ("Endless", True, "Endless.inverse_temperature returns NaN or infinity for plain queries and keys"),
        ("AlwaysCounting", True, "changes the buffer calls in evaluation mode, too"),
        ("Assigning", True, "assigns the buffer calls, which seeds that train together would lose: write it in place"),
        ("SaysNothingOfKeys", True, "changes with the keys, but the class declares reads_keys = False"),
        ("Untrained", True, "Untrained.gain is a tensor with requires_grad, which no optimiser would train"),
        ("Tells", True, "Tells.temperatures must return a dict of tensors, and returned {'mine': 3.0}"),
        ("NoRule", True, "is not a temperature rule: derive it from lab.attention.rule.TemperatureRule"),
    ],
)
def test_natural_mistakes_are_answered_where_a_model_is_built(name: str, partial: bool, words: str) -> None:
    with pytest.raises(LabError) as told, Ending().told():
        built(name, partial)
    assert words in str(told.value)


@pytest.mark.parametrize("model", ["vit", "sets", "reasoner"])
@pytest.mark.parametrize("name", ["ByLength", "Gated", "InTraining"])
def test_every_model_is_right_under_a_rule_that_depends_on_more(name: str, model: str) -> None:
    """Nothing is declared; a model made in Python, too, is found out about where its rules are made."""
    torch.manual_seed(0)
    softmax = globals()[name]
    made: Any
    x: Any
    if model == "vit":
        made, x = built(name), torch.randn(2, 3, 8, 8)
    elif model == "sets":
        made, x = SetAttention(width=8, softmax=softmax), (torch.rand(4, 9, 11), torch.rand(4, 1))
    else:
        made, x = Reasoner(depth=2, softmax=softmax), torch.randint(12, (6, 5))
    made.train()
    for parameter in (p for rule in made.rules() for p in rule.parameters()):
        nn.init.constant_(parameter, 0.5)
    with Recorder(made).on(), torch.no_grad():
        whole = made(x)
    torch.testing.assert_close(made(x), whole, rtol=1e-4, atol=1e-5)


def test_what_is_found_is_known_of_every_layer_and_of_copies() -> None:
    for twin in (model := Reasoner(depth=3)), copy.deepcopy(model), pickle.loads(pickle.dumps(model)):
        assert [(rule.couples_queries, rule.weighs_channels) for rule in twin.rules()] == [(False, False)] * 3
    with torch.device("meta"):
        assert Reasoner().rules()[0].couples_queries is None


def test_what_a_rule_does_not_save_is_its_own_affair() -> None:
    check_rule(Cached(2, 4))
    twice = Fixed(2, 4)
    vars(twice)["same"] = twice.weight = nn.Parameter(torch.ones(()))  # type: ignore[assignment]
    check_rule(twice)


def test_what_a_rule_keeps_is_not_touched_by_the_trial() -> None:
    model: Any = built("Counting")
    assert [rule.calls.item() for rule in model.rules()] == [0, 0]


def test_a_constructor_is_told_before_its_options_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The config's tau is no option of such a constructor, and that would be the lesser half of the truth."""
    (tmp_path / "their_rules.py").write_text(
        "from lab.attention.rule import TemperatureRule\n\n\n"
        "class Powered(TemperatureRule):\n"
        "    def __init__(self, power=1.0):\n"
        "        super().__init__()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LabError) as told:
        train_with(["experiment=reasoning", "softmax._target_=their_rules.Powered", f"paths.runs={tmp_path}"])
    assert str(told.value) == (
        "their_rules.Powered cannot make the rule of a layer, because it does not take heads and head_dim: write "
        "def __init__(self, heads, head_dim, tau=None, power=1.0) and hand the first three on with "
        "super().__init__(heads, head_dim, tau)"
    )


def test_a_config_that_makes_the_rule_at_once_is_told_before_its_options_are(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"^softmax: the config of .*Fixed needs the line _partial_: true"):
        train_with(["experiment=reasoning", "softmax._partial_=false", f"paths.runs={tmp_path}"])


class Cold(TemperatureRule):
    """Depends on all queries at a small tau alone."""

    def inverse_temperature(self, q: Tensor, k: Tensor, mask: Any = None) -> Tensor:
        return torch.where(self.tau < 0.01, q.square().mean((-2, -1), keepdim=True), 1.0)


class Faint(TemperatureRule):
    """Depends on all queries where they are small alone."""

    def inverse_temperature(self, q: Tensor, k: Tensor, mask: Any = None) -> Tensor:
        faint = q.abs().amax((-2, -1), keepdim=True) < 1e-2
        return torch.where(faint, 1 + 1e6 * q.square().mean((-2, -1), keepdim=True), 1.0)


@pytest.mark.parametrize("kind", [Cold, Faint])
def test_the_trial_looks_at_many_sizes_and_temperatures(kind: type[TemperatureRule]) -> None:
    rule = kind(2, 4)
    check_rule(rule)
    assert rule.couples_queries is True
