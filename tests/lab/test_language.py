"""The language experiments train offline under any softmax, and a model that does not fit is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from conftest import assert_resumed_alike, set_status, summary_of, train_in

from lab.attention.normalisers.softmax import Softmax
from lab.attention.rules.norm import NormSoftmax
from lab.console import LabError
from lab.models.language import CausalLanguageModel, MaskedLanguageModel
from lab.models.observable import observable
from lab.train import run
from lab.training.stored import load_config

pytest.importorskip("transformers", reason="the extra language is not installed")

TINY = (
    "data.vocabulary=300", "data.block=16", "data.batch_size=4", "data.epoch_size=40", "data.validation_size=8",
    "model.layers=2", "model.heads=2", "model.width=16", "trainer.max_epochs=2", "logger=csv_only",
    "callbacks.eureka.plateau_share=1.1",
)  # fmt: skip


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name in ("train.txt", "valid.txt"):
        (folder / name).write_text("\n".join(f"{number} and {number % 7} are numbers" for number in range(200)))
    return (*TINY, f"data.corpus.folder={folder}")


@pytest.mark.parametrize(
    ("experiment", "softmax"),
    [
        ("masked_language", "norm_softmax"),
        ("causal_language", "learnable_temperature"),
        ("masked_language_small", "softmax_plus_one"),
        ("causal_language_small", "norm_softmax_heat_treatment"),
    ],
)
def test_twenty_steps_under_a_softmax(experiment: str, softmax: str, tiny: tuple[str, ...], tmp_path: Path) -> None:
    folder = train_in(tmp_path / "runs", f"experiment={experiment}", f"softmax={softmax}", *tiny)
    summary = summary_of(folder)
    assert (summary["status"], summary["steps"], summary["eureka"]["metric"]) == ("finished", 20, "val/loss")
    assert summary["eureka"]["threshold"] == pytest.approx(1.1 * summary["eureka"]["prior_loss"])
    assert load_config(folder).data.corpus.folder  # what lab.inspect makes it of
    assert 0 < summary["metrics"]["val/loss"] < 7 and 0 <= summary["metrics"]["val/accuracy"] <= 1


def test_a_resumed_run_ends_with_the_same_weights(tiny: tuple[str, ...], tmp_path: Path) -> None:
    options = ("experiment=masked_language_small", *tiny, "checkpoints.every_n_steps=7")
    assert_resumed_alike(tmp_path, *options)


@pytest.mark.parametrize("seeds", ["seed=0", "seeds=2"])
def test_a_run_does_not_go_on_with_other_data(seeds: str, tiny: tuple[str, ...], tmp_path: Path) -> None:
    typed = ["experiment=causal_language_small", *tiny, seeds, f"paths.runs={tmp_path / 'runs'}", "threads=1"]
    before = run(typed)
    for one in before:
        set_status(tmp_path / "runs" / one.name, "stopped")
    for name in ("train.txt", "valid.txt"):
        text = tmp_path / "corpus" / name
        numbers = text.read_text()
        text.write_text(numbers.replace("numbers", "letters"))
        with pytest.raises(LabError, match=r"last-\d+\.ckpt was trained on other data than this run finds"):
            run(typed)
        text.write_text(numbers)
    after = run(typed)
    assert [one.status for one in after] == ["finished"] * len(before)
    assert [one.metrics for one in after] == [one.metrics for one in before]


def test_seeds_train_side_by_side(tiny: tuple[str, ...], tmp_path: Path) -> None:
    told = run(["experiment=causal_language_small", "seeds=2", *tiny, f"paths.runs={tmp_path / 'runs'}", "threads=1"])
    assert [one.status for one in told] == ["finished", "finished"]
    alone = train_in(tmp_path / "alone", "experiment=causal_language_small", "seed=1", *tiny)
    assert told[1].metrics["val/loss"] == pytest.approx(summary_of(alone)["metrics"]["val/loss"], rel=1e-4)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["experiment=causal_language_small", "model=roberta"], "MaskedLanguageModel does not fit this data"),
        (
            ["experiment=causal_language_small", "intervention=grad_scaling"],
            "gradient scaling knows the lab's own models, not GPT2Attention: leave intervention out",
        ),
        (["experiment=masked_language_small", "model=gpt2"], "CausalLanguageModel does not fit this data"),
        (["experiment=causal_language_small", "model.heads=3"], "model.heads=3 does not divide model.width=16"),
        (
            ["experiment=causal_language_small", "model=llama", "model.heads=16"],
            "model.width=16 over model.heads=16 is odd",
        ),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(
    options: list[str], said: str, tiny: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(LabError, match=said):
        train_in(tmp_path / "runs", *tiny, *options)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_a_causal_model_does_not_look_ahead(architecture: str) -> None:
    model = CausalLanguageModel(50, 12, architecture, 2, 2, 16, softmax=NormSoftmax).eval()
    x = torch.randint(50, (3, 12))
    other = x.clone()
    other[:, 7:] = (other[:, 7:] + 1) % 50
    before, after = model(x), model(other)
    assert before.shape == (3, 12, 50)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


def test_a_masked_model_answers_where_it_is_asked() -> None:
    model = MaskedLanguageModel(50, 12, 2, 2, 16, softmax=NormSoftmax).eval()
    x, places = torch.randint(5, 50, (3, 12)), torch.tensor([[1, 5], [0, 11], [2, 3]])
    whole = model.model(x, position_ids=torch.arange(12).unsqueeze(0)).logits
    torch.testing.assert_close(model((x, places)), whole.gather(1, places.unsqueeze(-1).expand(-1, -1, 50)))
    known = observable(model)
    assert known is model and len(model.rules()) == 2 and all(isinstance(one, NormSoftmax) for one in model.rules())
    assert all(isinstance(one, Softmax) for one in model.normalisers())
