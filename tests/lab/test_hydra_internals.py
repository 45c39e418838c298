"""What the lab takes of Hydra's private API is there and does what it is taken for."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.utils import get_object

from lab.config import hydra_internals
from lab.config.compose import initialized


@pytest.fixture
def hydra():
    with initialized():
        yield


def test_argument_parser_knows_the_flags_and_leaves_the_overrides() -> None:
    given = hydra_internals.argument_parser().parse_intermixed_args(["-m", "seed=1,2", "--config-dir", "my", "a=b"])
    assert (given.multirun, given.config_dir, given.overrides) == (True, "my", ["seed=1,2", "a=b"])


def test_hydra_and_loader_are_those_that_are_initialised(hydra) -> None:
    assert hydra_internals.hydra().config_loader is hydra_internals.loader()
    assert "softmax" in hydra_internals.loader().get_group_options("softmax")


def test_prepend_to_search_path_finds_configs_of_ones_own(tmp_path: Path, hydra) -> None:
    (tmp_path / "softmax").mkdir()
    (tmp_path / "softmax" / "mine.yaml").write_text("_target_: my.Rule\n")
    hydra_internals.prepend_to_search_path(f"file://{tmp_path}")
    assert "mine" in hydra_internals.loader().get_group_options("softmax")


def test_compose_multirun_has_hydras_own_settings(hydra) -> None:
    config = hydra_internals.compose_multirun(["experiment=reasoning", "seed=0,1"])
    assert config.hydra.sweeper._target_ == hydra_internals.BASIC_SWEEPER
    assert "seed=0,1" in config.hydra.overrides.task
    assert get_object(hydra_internals.BASIC_SWEEPER).__name__ == "BasicSweeper"


def test_split_into_jobs_is_the_product_of_the_values() -> None:
    typed = OverridesParser.create().parse_overrides(["a=1,2", "b=x", "c=3,4"])
    assert [list(job) for job in hydra_internals.split_into_jobs(typed)] == [
        [f"a={a}", "b=x", f"c={c}"] for a in (1, 2) for c in (3, 4)
    ]


def test_choices_are_those_of_composing(hydra) -> None:
    overrides = ["experiment=reasoning", "softmax=norm_softmax"]
    chosen = hydra_internals.Choices("train").of(OverridesParser.create().parse_overrides(overrides))
    assert (chosen["experiment"], chosen["softmax"], chosen["model"]) == ("reasoning", "norm_softmax", "reasoner")
    assert compose("train", overrides=overrides).model._target_.endswith("Reasoner")
