"""What the lab takes of Hydra's private API is there and does what it is taken for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra._internal.callbacks import Callbacks
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from hydra.types import HydraContext
from omegaconf import OmegaConf

from hydra_plugins.eureka_lab import offer
from lab.config import hydra_internals
from lab.config.command_line import composed
from lab.config.compose import CONFIGS, initialized


def test_argument_parser_knows_the_flags_and_leaves_the_overrides() -> None:
    given = hydra_internals.argument_parser().parse_intermixed_args(["-m", "seed=1,2", "--config-dir", "my", "a=b"])
    assert (given.multirun, given.config_dir, given.overrides) == (True, "my", ["seed=1,2", "a=b"])


def test_keys_of_a_config_file(hydra) -> None:
    assert hydra_internals.keys_of("sweep/atlas") == {"hydra", "paths", "seeds"}
    assert {"seed", "callbacks", "hydra"} <= hydra_internals.keys_of("train")


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
    assert "seed=0,1" in config.hydra.overrides.task


def test_a_plain_sweep_is_hydras_but_for_its_end(tmp_path: Path) -> None:
    offer([])
    with initialized():
        config = hydra_internals.compose_multirun(["experiment=reasoning", "seed=0,1", f"paths.runs={tmp_path}"])
        assert config.hydra.runtime.choices["hydra/sweeper"] == "basic"
        assert set(config.hydra.sweeper) == {"_target_", "max_batch_size", "params"}
        seen: list[str] = []
        hydra = hydra_internals.hydra()
        context = HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks())
        sweeper = Plugins.instance().instantiate_sweeper(
            config=config, hydra_context=context, task_function=lambda one: seen.append(one.seed)
        )
        sweeper.sweep(list(config.hydra.overrides.task))
    assert seen == [0, 1]
    assert type(sweeper).__module__ == "hydra_plugins.eureka_lab._basic"


def test_the_error_of_a_job_is_read_without_a_word(capsys) -> None:
    error = ValueError("why")
    assert hydra_internals.error_of(JobReturn(status=JobStatus.FAILED, _return_value=error)) is error
    assert hydra_internals.error_of(JobReturn(status=JobStatus.COMPLETED, _return_value=0.5)) is None
    assert capsys.readouterr().err == ""


def test_split_into_jobs_is_the_product_of_the_values() -> None:
    typed = OverridesParser.create().parse_overrides(["a=1,2", "b=x", "c=3,4"])
    assert [list(job) for job in hydra_internals.split_into_jobs(typed)] == [
        [f"a={a}", "b=x", f"c={c}"] for a in (1, 2) for c in (3, 4)
    ]


def test_a_range_of_decimals_has_the_typed_numbers_and_not_its_end() -> None:
    ranges = {
        "range(0.01,0.1,0.03)": [0.01, 0.04, 0.07],
        "range(0.01,0.02,0.01)": [0.01],
        "range(0.3,0,-0.1)": [0.3, 0.2, 0.1],
    }
    for text, numbers in ranges.items():
        typed = OverridesParser.create().parse_overrides([f"lr={text}"])
        assert [job for (job,) in hydra_internals.split_into_jobs(typed)] == [f"lr={number}" for number in numbers]


def test_choices_are_those_of_composing(hydra) -> None:
    overrides = ["experiment=reasoning", "softmax=norm_softmax"]
    chosen = hydra_internals.Choices("train").of(OverridesParser.create().parse_overrides(overrides))
    assert (chosen["experiment"], chosen["softmax"], chosen["model"]) == ("reasoning", "norm_softmax", "reasoner")
    assert compose("train", overrides=overrides).model._target_.endswith("Reasoner")


@pytest.mark.parametrize(
    "values",
    [
        ["seed=3", "optim.lr=0.1", "+own.list=[1,2]", "++data.numbers=5"],
        ["~optim.lr"],
        ["optim={lr: 1}"],
        ["hydra.run.dir=here"],
        ["hydra/launcher=basic", "seed=1"],
        ["softmax.tua=1"],
        ["softmax=softmax,norm_softmax"],
        ["++model=reasoner"],
        ["softmax=nothing"],
    ],
    ids=" ".join,
)
def test_a_choice_that_was_kept_is_what_hydra_composes(values: list[str]) -> None:
    typed = ["experiment=reasoning", *values]

    def found(kept: bool) -> object:
        with initialized() if kept else initialize_config_dir(str(CONFIGS), version_base="1.3"):
            try:
                config = compose("train", typed, return_hydra_config=True)
            except HydraException as error:
                return str(error)
        flags = [OmegaConf.is_struct(config), OmegaConf.is_readonly(config.hydra), OmegaConf.get_type(config.hydra)]
        return OmegaConf.to_container(config), flags

    wanted, first, again = found(False), found(True), found(True)
    assert first == wanted
    assert again == wanted


def test_what_was_composed_before_the_sweepers_were_offered_is_composed_anew() -> None:
    def sweeper() -> str:
        with initialized():
            return compose("train", ["experiment=reasoning"], return_hydra_config=True).hydra.sweeper._target_

    ConfigStore.instance().store(group="hydra/sweeper", name="basic", node={"_target_": "another", "params": None})
    hydra_internals.forget_composed()
    assert sweeper() == "another"
    offer([])
    assert sweeper().startswith("hydra_plugins.eureka_lab")


def test_a_choice_is_composed_once_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rule").mkdir()
    (tmp_path / "train.yaml").write_text("defaults: [rule: one, _self_]\nseed: 0\n")
    for name in ("one", "two"):
        (tmp_path / "rule" / f"{name}.yaml").write_text(f"name: {name}\n")
    whole, composed = ConfigLoaderImpl._compose_config_from_defaults_list, []
    monkeypatch.setattr(
        ConfigLoaderImpl,
        "_compose_config_from_defaults_list",
        lambda *args, **options: composed.append(1) or whole(*args, **options),
    )

    def config(*typed: str) -> Any:
        with initialize_config_dir(str(tmp_path), version_base="1.3"):
            hydra_internals.keep_configs(tmp_path)
            return OmegaConf.to_container(compose("train", list(typed)))

    assert config() == {"rule": {"name": "one"}, "seed": 0}
    assert config("seed=1", "rule.name=own") == {"rule": {"name": "own"}, "seed": 1}
    assert config() == {"rule": {"name": "one"}, "seed": 0}
    assert len(composed) == 1
    load, read = ConfigRepository.load_config, []
    monkeypatch.setattr(ConfigRepository, "load_config", lambda self, path: read.append(path) or load(self, path))
    assert config("rule=two")["rule"] == {"name": "two"} and len(composed) == 2
    assert "rule/two" in read and "train" not in read
    (tmp_path / "rule" / "one.yaml").write_text("name: changed\n")
    assert config("seed=1") == {"rule": {"name": "changed"}, "seed": 1} and len(composed) == 3


def test_a_file_outside_of_the_lab_is_read_each_time(tmp_path: Path) -> None:
    """Configs of one's own may change while a process runs."""
    (tmp_path / "softmax").mkdir()
    own = tmp_path / "softmax" / "mine.yaml"
    for tau in (2, 3):
        own.write_text(f"defaults: [softmax, _self_]\ntau: {tau}\n")
        assert composed(["experiment=reasoning", "softmax=mine"], tmp_path).config.softmax.tau == tau
