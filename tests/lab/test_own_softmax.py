"""A softmax of one's own: the page that tells how, and what is answered where its contract is not kept."""

from __future__ import annotations

import re
import shlex
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, python, summary_of
from omegaconf import OmegaConf
from torch import Tensor, nn

from lab.attention.functional import attend, attend_explicit
from lab.attention.rule import TemperatureRule, check_rule
from lab.attention.rules.adaptive import AdaptiveTemperature
from lab.attention.rules.fixed import Fixed
from lab.attention.rules.learnable import LearnableTemperature
from lab.attention.rules.norm import NormSoftmax
from lab.config.compose import CONFIGS, compose_config
from lab.console import LabError
from lab.inspect import main as look
from lab.models.compact_vit import CompactViT
from lab.runs.outcome import Ending
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
    monkeypatch.delitem(sys.modules, "my_rules", raising=False)
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
        "out=look",
    ]
    monkeypatch.setattr(sys, "argv", ["lab.inspect", *words])
    look()
    assert (mine / "look" / "diagnostics" / "temperature_in_use.csv").exists()


def test_seeds_train_together_under_the_rule_of_the_page(mine: Path) -> None:
    overrides = ["experiment=reasoning", "softmax._target_=my_rules.RangeSoftmax", "data.numbers=4"]
    summaries = train_with([*overrides, "trainer.max_epochs=3", "seeds=2", f"paths.runs={mine}", "threads=1"])
    assert [own.status for own in summaries] == ["finished", "finished"]


@pytest.mark.parametrize("masked", [False, True])
def test_the_rule_of_the_page_is_its_equation(mine: Path, masked: bool) -> None:
    from my_rules import RangeSoftmax  # type: ignore[import-not-found]

    rule = RangeSoftmax(4, 16, tau=3.0, fraction=0.5)
    check_rule(rule, any_basis=True)
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
    model: Any = built("my_rules.RangeSoftmax", model={**VIT, "depth": depth}, fraction=0.5)
    assert [rule.fraction for rule in model.rules()] == [0.5] * depth
    assert model(torch.randn(2, 3, 8, 8)).isfinite().all()


@pytest.mark.parametrize("path", READY, ids=lambda path: path.stem)
def test_every_ready_softmax_stands_in_the_table_with_its_options(path: Path) -> None:
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| `{path.stem}` |"))
    config = compose_config([f"softmax={path.stem}"]).softmax
    assert f"`{config._target_}`" in row
    for name in config:
        if not name.startswith("_") and (name != "schedule" or config.schedule is not None):
            assert f"`{name}`" in row, name


def test_the_table_names_nothing_that_is_not_there() -> None:
    named = re.findall(r"^\| `(\w+)` \|.*`lab\.softmax", PAGE, re.MULTILINE)
    assert sorted(named) == [path.stem for path in READY]
    schedule = compose_config(["softmax=heat_treatment"]).softmax.schedule
    paragraph = next(text for text in PAGE.split("\n\n") if text.startswith("Heat treatment is a schedule"))
    assert all(name.startswith("_") or f"{name}`" in paragraph for name in schedule)


@pytest.mark.parametrize("name", [n for n in vars(TemperatureRule) if not n.startswith("_")])
def test_all_of_the_contract_stands_on_the_page(name: str) -> None:
    assert f"`{name}" in PAGE


READY_RULES = [
    Fixed,
    NormSoftmax,
    partial(NormSoftmax, over="block", tau=1e6),
    partial(NormSoftmax, statistic="std", tau=1e6),
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
    check_rule(rule, any_basis=True)
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


class Unmade(TemperatureRule):
    def __init__(self, power: float = 1.0) -> None:
        super().__init__()  # type: ignore[call-arg]


class NotHanded(TemperatureRule):
    def __init__(self, heads: int, head_dim: int, tau: float | None = None) -> None:
        super().__init__()  # type: ignore[call-arg]


class NoBeta(TemperatureRule):
    pass


class NoMask(TemperatureRule):
    def inverse_temperature(self, q: Tensor, k: Tensor) -> Tensor:  # type: ignore[override]
        return 1 / self.tau


class NoRule(nn.Module):
    def __init__(self, heads: int, head_dim: int, tau: float | None = None) -> None:
        super().__init__()


class Counting(TemperatureRule):
    """Counts its calls in a buffer, as a rule should not."""

    def __init__(self, heads: int, head_dim: int, tau: float | None = None) -> None:
        super().__init__(heads, head_dim, tau)
        self.register_buffer("calls", torch.zeros(()))
        self.calls: Tensor

    def inverse_temperature(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
        self.calls += 1
        return 1 / self.tau


@pytest.mark.parametrize(
    ("beta", "words"),
    [
        (lambda q, k: q.norm(dim=-1), "returns [2, 4, 3] of queries [2, 4, 3, 16] and keys [2, 4, 5, 16]"),
        (lambda q, k: k.norm(dim=-1, keepdim=True), "returns [2, 4, 5, 1] of queries"),
        (lambda q, k: (q @ k.transpose(-2, -1)).abs(), "it must be broadcastable to the queries, as is [2, 4, 3, 1]"),
        (lambda q, k: 0.25, "must return a tensor of real numbers, not float"),
        (
            lambda q, k: torch.ones((), dtype=torch.int64),
            "must return a tensor of real numbers, not a tensor of torch.int64",
        ),
        (lambda q, k: None, "not NoneType"),
        (lambda q, k: (q * k).sum(-1, keepdim=True), "fails on queries [2, 4, 3, 16] and keys [2, 4, 5, 16]"),
        (lambda q, k: torch.ones(4, 1, 16), "let the property weighs_channels return True"),
        (lambda q, k: 1 / q.std((-2, -1), keepdim=True), "let the property couples_queries return True"),
    ],
)
def test_a_beta_that_is_none_is_answered_in_one_sentence(beta: Any, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as told:
        check_rule(Rule(4, 16, beta=beta))
    assert "test_own_softmax.Rule.inverse_temperature" in str(told.value) and "\n" not in str(told.value)


def test_cross_attention_takes_no_rule_that_depends_on_the_basis_and_denies_it() -> None:
    def by_length(q: Tensor, k: Tensor) -> Tensor:
        return 1 / q.norm(dim=-1, keepdim=True)

    check_rule(Rule(4, 16, beta=by_length))
    with pytest.raises(ValueError, match="let the property weighs_channels return True"):
        check_rule(Rule(4, 16, beta=by_length), any_basis=True)
    # What is only shifted by the bias of the keys is no other softmax, but another largest score.
    with pytest.raises(ValueError, match="more than the differences between the scores"):
        check_rule(Rule(4, 16, beta=lambda q, k: (q @ k.transpose(-2, -1)).amax(-1, keepdim=True)), any_basis=True)

    class ByLength(Rule):
        weighs_channels = True  # type: ignore[assignment]

    check_rule(ByLength(4, 16, beta=by_length), any_basis=True)


def test_a_rule_that_draws_random_numbers_is_not_compared() -> None:
    before = torch.get_rng_state()
    check_rule(Rule(4, 16, beta=lambda q, k: torch.rand(*q.shape[:3], 1)), any_basis=True)
    assert torch.equal(before, torch.get_rng_state())


VIT = {"_target_": "lab.models.compact_vit.CompactViT", "image_size": 8, "patch_size": 4, "depth": 2, "heads": 2}
VIT_FACTS = {"num_classes": 3}
SETS = {"_target_": "lab.models.set_attention.SetAttention", "width": 8}


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
        ("NoBeta", True, "NoBeta.inverse_temperature must return a tensor"),
        ("NoMask", True, "inverse_temperature(q, k, mask) fails on"),
        ("NoRule", True, "is no temperature rule: derive it from lab.attention.rule.TemperatureRule"),
    ],
)
def test_natural_mistakes_are_answered_where_a_model_is_built(name: str, partial: bool, words: str) -> None:
    with pytest.raises(LabError) as told, Ending().told():
        built(name, partial)
    assert words in str(told.value)


def test_a_model_with_cross_attention_asks_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    class ByLength(TemperatureRule):
        def inverse_temperature(self, q_BHND: Tensor, k_BHMD: Tensor, mask: Tensor | None = None) -> Tensor:
            return 1 / q_BHND.norm(dim=-1, keepdim=True)

    monkeypatch.setitem(globals(), "ByLength", ByLength)
    assert isinstance(built("ByLength"), CompactViT)
    with pytest.raises(ValueError, match="weighs_channels"):
        built("ByLength", model=SETS, facts={"features": 11, "num_classes": 10})


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
        "their_rules.Powered cannot make the rule of a layer, whose heads and head_dim it does not take: write "
        "def __init__(self, heads, head_dim, tau=None, power=1.0) and hand the first three on, "
        "super().__init__(heads, head_dim, tau)"
    )
