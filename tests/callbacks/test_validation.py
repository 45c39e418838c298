"""Validation at a checkpoint: the run's own numbers, their errors, other units, and a bigram model."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from conftest import summary_of, train_in, write_alphabets

from lab.callbacks.diagnostics.validation import _mean, _Validated
from lab.config.look_arguments import look_arguments
from lab.console import LabError
from lab.datasets.prior import bigram_loss, unigram_loss
from lab.training.inspect_model import inspect_model
from lab.training.inspection import inspect
from lab.training.load import read_trained

LANGUAGE = (
    "data.vocabulary=300", "data.block=16", "data.batch_size=4", "data.epoch_size=40", "data.validation_size=10",
    "model.layers=1", "model.heads=2", "model.width=16", "optim.lr=1e-2",
)  # fmt: skip
IN_CONTEXT = (
    "data/alphabets=folder", "data.image_size=12", "data.symmetries=4", "data.rare=null", "data.common=3",
    "data.holdout=4", "data.pairs=4", "data.shots=2", "data.batch_size=4", "data.epoch_steps=2",
    "data.validation_size=30", "data.in_weights_size=9", "data.validation_batch_size=16", "model.channels=[8,16]",
    "model.blocks=[1,1]", "model.stem=8", "model.layers=1",
)  # fmt: skip
SMALL = ("data.batch_size=16", "data.validation_size=40")
SCENES = [f"data.source.{kind}.{split}_size=60" for kind in ("digits", "garments") for split in ("train", "test")]
RUNS = {
    "reasoning_small": ("trainer.max_epochs=2", "trainer.check_val_every_n_epoch=1"),
    "max_retrieval": (*SMALL, "data.epoch_steps=2", "trainer.max_epochs=1"),
    "main_task_small": (
        *SMALL, "data/source=drawn", *SCENES, "data.epoch_size=32", "model.depth=1", "trainer.max_epochs=1",
    ),
    "in_context_small": (*IN_CONTEXT, "trainer.max_epochs=1"),
    "causal_language_small": (*LANGUAGE, "trainer.max_epochs=2"),
    "masked_language_small": (*LANGUAGE, "trainer.max_epochs=2"),
    "clrs_text_small": (
        "data.batch_size=4", "data.epoch_size=8", "data.validation_size=12", "data.problems.algorithms=[minimum,bfs]",
        "data.problems.smallest=4", "data.problems.largest=5", "data.problems.validation_sizes=[4,5]", "model.layers=1",
        "model.heads=2", "model.width=16", "trainer.max_epochs=1",
    ),
}  # fmt: skip


def trained(folder: Path, monkeypatch: pytest.MonkeyPatch, experiment: str, *typed: str) -> Path:
    """A run of an experiment in small, on data that is at hand."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    own = list(RUNS[experiment])
    if "language" in experiment:
        pytest.importorskip("transformers")
        (folder / "corpus").mkdir()
        for name, first in (("train.txt", 0), ("valid.txt", 150)):
            lines = (f"{number} és {number % 7} are numbers" for number in range(first, first + 200))
            (folder / "corpus" / name).write_text("\n".join(lines), encoding="utf-8")
        own.append(f"data.corpus.folder={folder / 'corpus'}")
    if experiment.startswith("in_context"):
        write_alphabets(folder / "alphabets", {"A": 7, "B": 5}, drawings=6)
        own.append(f"data.alphabets.root={folder / 'alphabets'}")
    return train_in(folder / "runs", f"experiment={experiment}", *own, "logger=csv_only", *typed)


def validated(run: Path, **options: object) -> pd.DataFrame:
    folder = inspect(run, ["callbacks=[validation]"], force=True, **options)  # type: ignore[arg-type]
    return pd.read_csv(folder / "diagnostics" / "validation.csv").set_index("number")


def test_a_batch_that_asks_for_nothing_has_no_part_in_the_loss() -> None:
    """As training's own mean leaves it out."""
    validated = object.__new__(_Validated)
    validated._means = [2.0, math.nan, 5.0]
    validated._losses = [torch.tensor([[2.0, 1.0]]), torch.zeros(1, 2), torch.tensor([[15.0, 3.0]])]
    assert validated.loss()["value"] == pytest.approx(17 / 4)
    validated._means, validated._losses = [math.nan], [torch.zeros(1, 2)]
    assert math.isnan(validated.loss()["value"])


@pytest.mark.parametrize("experiment", RUNS)
def test_the_numbers_are_those_that_the_run_has_logged(
    experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trained(tmp_path, monkeypatch, experiment)
    table = validated(run)
    logged = {
        name.removeprefix("val/"): value
        for name, value in summary_of(run)["metrics"].items()
        if name.startswith("val/")
    }
    assert set(logged) <= set(table.index)
    # The table has six digits.
    assert table.loc[list(logged), "value"].tolist() == pytest.approx(list(logged.values()), rel=1e-5, abs=1e-6)
    moment = summary_of(run)["eureka"]
    for name in ("prior_loss", "prior_accuracy"):
        assert (name in table.index) == (moment[name] is not None)
        if moment[name] is not None:
            assert table.loc[name, "value"] == pytest.approx(moment[name], rel=1e-5)
    assert ("perplexity" in table.index) == ("language" in experiment or "clrs" in experiment)
    assert ("bigram_loss" in table.index) == ("bits_per_byte" in table.index) == experiment.startswith("causal")


def test_units_errors_and_other_data_of_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(tmp_path, monkeypatch, "causal_language_small")
    table = validated(run)
    state = read_trained(run)
    data: Any = state.data()
    model = state.model().eval()
    data.setup("fit")
    batches = [data.draw_validation(index) for index in data.validation_batches(4)]
    x, y = (torch.cat([batch[name] for batch in batches]) for name in "xy")
    with torch.no_grad():
        loss_BN = F.cross_entropy(model(x).transpose(1, 2), y, reduction="none").double()
    loss = float(loss_BN.mean())
    error = float(loss_BN.mean(1).std() / math.sqrt(10))
    assert table.loc["loss"].tolist()[1:] == pytest.approx([loss, error, 10], rel=1e-5)
    assert table.loc["perplexity"].tolist()[1:] == pytest.approx([math.exp(loss), math.exp(loss) * error, 10], rel=1e-5)
    # The text itself, cut as the tokens are; every line ends by one byte.
    stream = data.tokens.streams["validation"][1:161].tolist()
    characters = [data.tokens.tokenizer.id_to_token(token) for token in stream]
    count = sum(1 if text == "</s>" else len(text) for text in characters)  # byte-level: a character is a byte
    assert "Ã" in "".join(characters)
    bits = [float(loss_BN.sum()) / math.log(2) / scale for scale in (160, count)]
    assert table.loc[["bits_per_token", "bits_per_byte"], "value"].tolist() == pytest.approx(bits, rel=1e-5)
    other = validated(run, data_options={"data.validation_size": 3}, out=tmp_path / "other")
    assert other.loc["loss"].tolist()[1:] == pytest.approx(
        [float(loss_BN[:3].mean()), float(loss_BN[:3].mean(1).std() / math.sqrt(3)), 3], rel=1e-5
    )


def test_a_bigram_model_pair_by_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    stream = random.integers(0, 7, 400)
    stream[1::2] = (stream[::2] * 3 + 1) % 8  # every other token follows from the one before it
    text, held = stream[:360].tolist(), stream[360:].tolist()

    def surprise(counted: list[int], pairs: list[tuple[int, int]], weight: float) -> float:
        tokens, firsts = Counter(counted), Counter(counted[:-1])
        both = Counter(pairwise(counted))
        told = []
        for a, b in pairs:
            even = (tokens[b] + 1) / (len(counted) + 9)
            told.append(-math.log(weight * both[a, b] / firsts[a] + (1 - weight) * even if firsts[a] else even))
        return float(np.mean(told))

    pairs = [(1, 4), (4, 2), (8, 3), (2, 8)]  # token 8 never comes
    weight = min(np.linspace(0, 1, 2001)[1:-1], key=lambda one: surprise(text, list(pairwise(held)), one))
    monkeypatch.setattr("lab.datasets.prior._COUNTED", 37)
    before, answers = np.array(pairs).T
    found = bigram_loss(stream.astype(np.uint16), before, answers, 9)
    assert found == pytest.approx(surprise(stream.tolist(), pairs, weight), rel=1e-3)
    everything = stream[:-1], stream[1:]
    plain = unigram_loss(np.bincount(stream, minlength=9) + 1.0, stream[1:])
    assert bigram_loss(stream, *everything, 9) < plain - 0.3


def test_the_error_of_answers_that_differ_in_number() -> None:
    sums = [torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[3.0, 3.0], [0.0, 1.0]])]
    found = _mean(sums)
    residuals = [1 - 2 * 4 / 6, 3 - 3 * 4 / 6, 0 - 4 / 6]
    assert found["value"] == pytest.approx(4 / 6) and found["samples"] == 3
    assert found["standard_error"] == pytest.approx(math.sqrt(1.5 * sum(one**2 for one in residuals)) / 6)


def test_it_is_for_runs_and_after_training(tmp_path: Path) -> None:
    with pytest.raises(
        LabError, match=r"callbacks.validation does not work during training, which validates by itself"
    ):
        train_in(tmp_path, "experiment=reasoning_small", "callbacks=[reasoning,validation]", "logger=csv_only")
    transformers = pytest.importorskip("transformers")
    transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=40, n_positions=20, n_embd=8, n_layer=1, n_head=2)
    ).save_pretrained(tmp_path / "gpt2")
    typed = [f"model=hf:{tmp_path / 'gpt2'}", "kind=AutoModelForCausalLM", "diagnostics=[validation]"]
    with pytest.raises(
        LabError, match=r"validation needs a run, with labels to validate on, which model=hf.* does not"
    ):
        inspect_model(**look_arguments([*typed, f"out={tmp_path / 'look'}"]))
