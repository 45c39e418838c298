"""A trained model comes back from its run folder, under its own softmax or another."""

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import train_in

import lab
from lab.callbacks.diagnostics.attention_entropy import AttentionEntropy
from lab.console import LabError
from lab.models.composed_softmax import softmax_config
from lab.report.gather import gather
from lab.runs.checkpoints import DamagedCheckpoint, read_checkpoint, save_checkpoint
from lab.runs.metrics import read_metrics
from lab.runs.summary import load_summary
from lab.training.inspection import inspect
from lab.training.load import read_trained

SETS = (
    "experiment=max_retrieval",
    "data.epoch_steps=3",
    "data.batch_size=8",
    "data.validation_size=8",
    "model.width=8",
    "checkpoints.every_n_steps=3",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return train_in(tmp_path_factory.mktemp("load"), *SETS, "softmax=learnable_temperature", "trainer.max_epochs=2")


def test_the_newest_weights_are_loaded(folder: Path) -> None:
    trained = read_trained(folder)
    model = trained.model()
    assert trained.step == 6
    assert not model.training
    saved = torch.load(folder / "checkpoints" / "last-000000006.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(value, saved[f"model.{name}"]) for name, value in model.state_dict().items())


def test_a_notebook_shows_it_in_one_line(folder: Path) -> None:
    trained, summary = read_trained(folder), load_summary(folder)
    numbers = sum(one.numel() for one in trained.state.values())
    assert repr(trained) == f"Trained({folder}/checkpoints/last-000000006.ckpt: 6 steps, {numbers:,} numbers)"
    assert repr(trained.data()) == "MaxRetrievalData(batch_size=8, validation_size=8, epoch_steps=3)"
    assert repr([summary]) == f"[{summary}]" and repr(summary).startswith("finished: ")


@pytest.mark.parametrize(
    ("which", "file"), [(3, "last-000000003.ckpt"), ("6", "last-000000006.ckpt"), ("best", "best.ckpt")]
)
def test_a_named_checkpoint_is_loaded(folder: Path, which: Any, file: str) -> None:
    trained = read_trained(folder, checkpoint=which)
    saved = read_checkpoint(folder / "checkpoints" / file)
    assert (trained.path, trained.step) == (saved.path, saved.step)
    weights = trained.model().state_dict()
    assert all(torch.equal(value, saved.content["state_dict"][f"model.{name}"]) for name, value in weights.items())


def test_a_checkpoint_that_is_not_there_is_told_beside_those_that_are(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"has no checkpoint 4: there is 3, 6, best$"):
        read_trained(folder, checkpoint=4)
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    for path in (copy / "checkpoints").glob("last-*"):
        path.unlink()
    assert read_trained(copy, checkpoint="best").model() is not None
    with pytest.raises(LabError, match="no checkpoint of its last steps, but its best one: ask for checkpoint=best"):
        read_trained(copy)
    (copy / "checkpoints" / "best.ckpt").write_bytes(b"nothing")
    with pytest.raises(LabError, match=r"best\.ckpt is damaged: its content does not match"):
        read_trained(copy, checkpoint="best")
    (copy / "checkpoints" / "best.ckpt").unlink()
    with pytest.raises(LabError, match="has no checkpoint best: there is none at all"):
        read_trained(copy, checkpoint="best")


def test_data_that_have_changed_are_refused(tmp_path: Path) -> None:
    """With other texts, say, a tokenizer trained on them gives other tokens, and every diagnostic is of nothing."""
    (tmp_path / "texts").mkdir()
    words = "one two three four five six seven eight nine ten eleven twelve"
    (tmp_path / "texts" / "train.txt").write_text(f"{words}\n" * 400)
    (tmp_path / "texts" / "valid.txt").write_text(f"{words}\n" * 100)
    text = ["experiment=causal_language_small", f"data.corpus.folder={tmp_path / 'texts'}", "data.vocabulary=280"]
    text += ["data.block=16", "data.batch_size=8", "data.epoch_size=16", "data.validation_size=8", "callbacks=default"]
    run = train_in(
        tmp_path / "runs", *text, "model.layers=1", "model.width=16", "model.heads=2", "trainer.max_epochs=1"
    )
    read_trained(run).data()
    (tmp_path / "texts" / "more.txt").write_text("thirteen fourteen fifteen sixteen\n" * 900)
    with pytest.raises(LabError, match=r"was trained on other data than are found now"):
        read_trained(run).data()
    with pytest.raises(LabError, match=r"was trained on other data than are found now"):
        inspect(run, ["callbacks=[attention_entropy]"])
    assert not (run / "inspect").exists()


def test_another_softmax_keeps_the_weights_and_brings_its_own_temperature(folder: Path) -> None:
    trained = read_trained(folder)
    own: Any = trained.model()
    other: Any = trained.model(softmax_config("adaptive_temperature", "softmax.tau=2.0"))
    rule = other.rules()[0]
    assert type(rule).__name__ == "AdaptiveTemperature"
    assert rule.tau.item() == 2.0
    assert torch.equal(own.items[0].weight, other.items[0].weight)


def test_another_softmax_has_the_trained_temperature_where_it_says_none(tmp_path: Path) -> None:
    folder = train_in(tmp_path, *SETS, "softmax=softmax", "softmax.tau=3.0", "trainer.max_epochs=1")
    trained = read_trained(folder)
    for name in ("hard", "log_length", "adaptive_temperature", "norm_softmax"):
        model: Any = trained.model(name)
        assert model.rules()[0].tau.item() == 3, name
    model = trained.model("linear")
    assert model.rules()[0].tau.item() == 1  # it says one


def test_a_default_of_null_is_read(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\ndefaults: [max_retrieval, _self_]\nnorm_softmax: {tau: null}\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    mine = (f"hydra.searchpath=[file://{tmp_path}]", "experiment=mine", "softmax=softmax", "trainer.max_epochs=1")
    folder = train_in(tmp_path, *SETS, *mine)
    model: Any = read_trained(folder).model("norm_softmax")
    assert type(model.rules()[0]).__name__ == "NormSoftmax"


def test_a_path_may_be_a_string_and_a_softmax_a_name(folder: Path) -> None:
    trained = lab.read_trained(str(folder))
    with pytest.raises(LabError, match=r"takes a data module of the lab, got Tensor: lab.look takes a batch"):
        lab.observe(trained.model(), torch.zeros(2), [AttentionEntropy("look")])
    with pytest.raises(LabError, match=r"needs observers, as in \[AttentionEntropy"):
        lab.observe(trained.model(), trained.data(), [])
    (found,) = lab.observe(trained.model("hard"), trained.data(), [AttentionEntropy("look", scenes=8)])
    assert found.rows and all(row["entropy"] == 0 for row in found.rows)
    assert load_summary(str(folder)).steps == trained.step == 6
    assert read_metrics(str(folder / "metrics.csv"))[-1]["step"] == 5
    assert gather(str(folder)).runs[0].folder == folder


def test_what_is_missing_is_named(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(LabError, match=r"holds no run: config\.yaml is missing"):
        read_trained(tmp_path)
    with pytest.raises(LabError, match="nowhere holds no run: there is no such folder"):
        read_trained(tmp_path / "nowhere")
    with pytest.raises(LabError, match=f"holds no run: name one below it, such as {re.escape(str(folder))}"):
        read_trained(folder.parent)
    with pytest.raises(LabError, match=f"^{folder.parent} holds no run: name one below it, such as {folder}$"):
        load_summary(folder.parent)
    (tmp_path / "config.yaml").write_text((folder / "config.yaml").read_text())
    with pytest.raises(LabError, match="no checkpoint yet"):
        read_trained(tmp_path)


def test_a_checkpoint_that_never_ends_is_damaged(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "last-000000001.ckpt")
    with pytest.raises(DamagedCheckpoint, match="it is no plain file"):
        read_checkpoint(tmp_path / "last-000000001.ckpt")
    save_checkpoint({"global_step": 1, "state_dict": {0: torch.ones(1)}}, tmp_path / "other.ckpt")
    with pytest.raises(DamagedCheckpoint, match="its state_dict has a key that is not a name"):
        read_checkpoint(tmp_path / "other.ckpt")
    save_checkpoint({"global_step": 1, "state_dict": [1]}, tmp_path / "other.ckpt")
    with pytest.raises(DamagedCheckpoint):
        read_checkpoint(tmp_path / "other.ckpt")


def test_a_softmax_that_is_swapped_in_is_checked() -> None:
    with pytest.raises(LabError, match=r"softmax\.statistic='median' is wrong"):
        softmax_config("norm_softmax", "softmax.statistic=median")
    # As the experiment of a run has it.
    assert softmax_config("norm_softmax", "+norm_softmax.statistic=std").statistic == "std"


def test_parameters_of_the_same_name_are_another_softmax_s_own(folder: Path) -> None:
    model: Any = read_trained(folder).model(softmax_config("learnable_temperature", "softmax.granularity=channel"))
    assert (model.rules()[0].theta == 1).all() and model.rules()[0].theta.numel() == 8


@pytest.mark.parametrize("form", ["log_n", "sqrt_log_ratio", "learned"])
def test_a_length_rule_on_a_trained_model_knows_the_length_it_was_trained_on(folder: Path, form: str) -> None:
    own: Any = read_trained(folder).model(softmax_config("softmax"))
    other: Any = read_trained(folder).model(softmax_config("log_length", f"softmax.form={form}"))
    assert other.rules()[0].trained_length == 16
    few, many = (torch.rand(4, n, 11) for n in (16, 64))
    query = torch.rand(4, 1)
    assert torch.allclose(own((few, query)), other((few, query)), atol=1e-6) == (form != "log_n")
    assert not torch.equal(own((many, query)), other((many, query)))
