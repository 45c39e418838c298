"""Runs are of one setting where they differ in the seed alone."""

from __future__ import annotations

from pathlib import Path

import yaml

from lab.report.assemble import assemble
from lab.report.gather import gather
from lab.report.records import what_is_run
from lab.report.settings import Setting, settings


def test_values_that_read_alike_are_settings_of_their_own_names(write, tmp_path: Path) -> None:
    for seed, value in enumerate((True, 1, "1")):
        path = write(seed, 12, "model.layer_norm=true") / "config.yaml"
        config = yaml.safe_load(path.read_text())
        config["model"]["layer_norm"] = value
        path.write_text(yaml.safe_dump(config))
    named = [setting.name for setting in settings(gather(tmp_path).runs)]
    assert sorted(named) == [
        "softmax, model.layer_norm=1 (1)",
        "softmax, model.layer_norm=1 (2)",
        "softmax, model.layer_norm=True",
    ]


def test_of_many_keys_that_differ_the_first_are_told_and_where_a_class_lies_last(write, tmp_path: Path) -> None:
    """As between runs of two versions of the lab, of one command."""
    write(0, 12)
    path = write(1, 12) / "config.yaml"
    config = yaml.safe_load(path.read_text())
    config["data"] = {"_target_": "older.Data"}
    config["model"] |= {"layer_norm": False, "old": 1, "older": 2}
    path.write_text(yaml.safe_dump(config))
    assert [setting.name for setting in settings(gather(tmp_path).runs)] == [
        "softmax, data.numbers=11, data.train_share=0.3, model.layer_norm=True (1)",
        "softmax, data.numbers=absent, data.train_share=absent, model.layer_norm=False (2)",
    ]


def test_settings_differ_in_more_than_the_seed(write, tmp_path: Path) -> None:
    for seed in range(3):
        write(seed, 12, "optim.lr=1e-3")
    write(0, 12, "optim.lr=2e-3")
    write(0, 12, "optim.lr=1e-3", "callbacks=[reasoning,attention_entropy]")  # only looks: the same setting
    write(0, 12, "+row=norm_softmax", softmax="norm_softmax", experiment="main_task")
    write(0, 12, "data.seed=0")  # drawn alike on purpose, which is not the seed's own data
    write(1, 12, "data.seed=0")
    found = settings(gather(tmp_path).runs)
    seeds = {setting.name: [run.seed for run in setting.runs] for setting in found}
    assert seeds == {
        "softmax, data.seed=0": [0, 1],
        "softmax, optim.lr=1e-3": [0, 1, 2],
        "softmax, optim.lr=2e-3": [0],
        "norm_softmax": [0],
    }
    (twice,) = [setting for setting in found if setting.name == "softmax, optim.lr=1e-3"]
    assert len(twice.doubles) == 1


def test_an_option_is_named_where_settings_differ_in_it(write, tmp_path: Path) -> None:
    """An option given at its default says nothing of a setting, and the order of folders nothing of its name."""

    def names(root: Path) -> dict[str, list[int]]:
        # Newest folders first, last and in between: names stay.
        runs = gather(root).runs
        found = [settings(order) for order in (runs, runs[::-1], (*runs[2:], *runs[:2]))]
        told = [{setting.name: [run.seed for run in setting.runs] for setting in own} for own in found]
        assert told[0] == told[1] == told[2]
        return told[0]

    for seed in range(3):
        write(seed, 12, "optim.lr=5e-3", "model=reasoner", "callbacks.eureka.stop_after=null")  # the defaults
        write(seed, 12, softmax="norm_softmax")
    assert names(tmp_path) == {"softmax": [0, 1, 2], "norm_softmax": [0, 1, 2]}
    write(3, 12, "optim.lr=0.0005")
    write(4, 12, "optim.lr=5e-4")
    others = {"softmax, optim.lr=0.0005": [3, 4], "norm_softmax": [0, 1, 2]}
    assert names(tmp_path) == {"softmax, optim.lr=5e-3": [0, 1, 2], **others}
    write(3, 12)  # like seeds 0 to 2, but not given any option
    assert names(tmp_path) == {"softmax": [0, 1, 2, 3], **others}


def test_a_choice_of_a_config_is_named_where_settings_differ_in_its_part(write, tmp_path: Path) -> None:
    for seed in range(2):
        write(seed, 12, "optim/lr=max_1e-4_min_1e-5", experiment="main_task")
        write(seed, 12, "optim/lr=max_1e-4_min_1e-6", experiment="main_task", softmax="norm_softmax")  # not in optim.lr
    assert [setting.name for setting in settings(gather(tmp_path).runs)] == [
        "softmax, optim/lr=max_1e-4_min_1e-5",
        "norm_softmax, optim/lr=max_1e-4_min_1e-6",
    ]


def test_the_baseline_is_the_experiment_as_it_comes(write, tmp_path: Path) -> None:
    """A ResNet and an intervention leave the softmax alone, too, and may have more seeds."""
    for seed in range(3):
        write(seed, 5, "model=resnet9", experiment="main_task")
        write(seed, None, "intervention=grad_scaling", experiment="main_task")
        write(seed, 9, experiment="main_task", softmax="norm_softmax")
    write(0, None, experiment="main_task")
    (section,) = assemble([gather(tmp_path)]).sections
    assert section.baseline is not None and section.baseline.name == "softmax"
    assert len(section.baseline.runs) == 1


def test_softmax_under_another_normaliser_is_no_baseline(write, tmp_path: Path) -> None:
    for seed in range(2):
        write(seed, 5, "softmax/normaliser=sigmoid")
        write(seed, 9, softmax="norm_softmax")
    (section,) = assemble([gather(tmp_path)]).sections
    assert section.baseline is None
    write(0, None)
    (section,) = assemble([gather(tmp_path)]).sections
    assert section.baseline is not None and section.baseline.name == "softmax"


def test_corpora_of_two_folders_are_two_settings() -> None:
    plain = {"data": {"corpus": {"folder": "/a"}, "root": "/data"}, "seed": 0}
    other = {"data": {"corpus": {"folder": "/b"}, "root": "/elsewhere"}, "seed": 0}
    typed = {"data.corpus.folder": "/a", "data.root": "/data"}
    assert what_is_run(plain, 0, typed) != what_is_run(other, 0, typed)
    assert what_is_run(plain, 0) == what_is_run(other, 0)  # of a default, where it lies says nothing


def test_images_of_two_folders_are_two_settings() -> None:
    typed = {"data.alphabets.root": "/a"}
    one, other = ({"data": {"alphabets": {"root": root}}, "seed": 0} for root in ("/a", "/b"))
    assert what_is_run(one, 0, typed) != what_is_run(other, 0, typed)


def test_the_seed_of_a_source_is_no_seed_of_the_run() -> None:
    plain = {"data": {"seed": 0, "source": {"digits": {"seed": 0}}}, "seed": 0}
    other = {"data": {"seed": 1, "source": {"digits": {"seed": 0}}}, "seed": 1}
    assert what_is_run(plain, 0) == what_is_run(other, 1) == {"data.source.digits.seed": 0}


def test_one_number_in_two_notations_is_one_setting(write, tmp_path: Path) -> None:
    for seed, value in enumerate((5, 5.0)):
        path = write(seed, 12, "optim.weight_decay=5") / "config.yaml"
        config = yaml.safe_load(path.read_text())
        config["optim"]["weight_decay"] = value
        path.write_text(yaml.safe_dump(config))
    (setting,) = settings(gather(tmp_path).runs)
    assert len(setting.runs) == 2


def test_two_configs_of_ones_own_are_two_settings_though_only_their_folders_differ() -> None:
    one, other = ({"data": {"corpus": {"folder": folder}}, "seed": 0} for folder in ("/a", "/b"))
    assert what_is_run(one, 0, {"data/corpus": "news"}) != what_is_run(other, 0, {"data/corpus": "poems"})
    # One of the lab's, typed or not, is the same.
    assert what_is_run(one, 0, {"data/corpus": "folder"}) == what_is_run(one, 0)


def test_an_option_of_a_rule_called_root_is_part_of_the_setting() -> None:
    one, other = ({"softmax": {"root": root}, "seed": 0} for root in (2.0, 3.0))
    assert what_is_run(one, 0) != what_is_run(other, 0)


def test_a_class_of_ones_own_called_softmax_is_not_plain_softmax() -> None:
    def setting(target: str) -> Setting:
        return Setting("softmax", "reasoning", "softmax", {"softmax._target_": target}, ())

    assert setting("lab.attention.rules.fixed.Fixed").plain and not setting("my_rules.softmax").plain
