"""The language experiments train offline under any softmax, and a model that does not fit is refused."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT, assert_resumed_alike, set_status, summary_of, train_in

from lab.attention.normalisers.softmax import Softmax
from lab.attention.rules.norm import NormSoftmax
from lab.console import LabError
from lab.datasets.text.data import CausalLanguageData
from lab.datasets.text.tokens import END
from lab.models.language import CausalLanguageModel, MaskedLanguageModel
from lab.models.observable import observable
from lab.train import run
from lab.training.inspection import inspect
from lab.training.load import read_trained
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


def test_short_blocks_train_alone_and_side_by_side(tiny: tuple[str, ...], tmp_path: Path) -> None:
    for name in ("train.txt", "valid.txt"):
        (tmp_path / "corpus" / name).write_text("\n".join("abcdefgh"[number % 8] for number in range(900)))
    typed = ["experiment=masked_language_small", *tiny, "data.share=0.7", "model.dropout=0.0", "threads=1"]
    together = run([*typed, "seeds=2", f"paths.runs={tmp_path / 'runs'}"])
    alone = summary_of(train_in(tmp_path / "alone", *typed, "seed=1"))
    assert [one.status for one in together] == ["finished", "finished"]
    assert together[1].metrics["val/loss"] == pytest.approx(alone["metrics"]["val/loss"], rel=1e-4)
    assert together[1].metrics["train/loss"] == pytest.approx(alone["metrics"]["train/loss"], rel=1e-4)
    assert 2 < alone["eureka"]["prior_loss"] < 3.5  # not that of tokens that never occur


def test_a_run_reads_other_texts_with_its_own_tokeniser(tiny: tuple[str, ...], tmp_path: Path) -> None:
    folder = train_in(tmp_path / "runs", "experiment=causal_language_small", *tiny)
    own = (folder / "tokenizer.json").read_bytes()
    trained = read_trained(folder)
    before = trained.data()
    assert isinstance(before, CausalLanguageData) and before.tokens.file.read_bytes() == own
    shutil.copytree(tmp_path / "corpus", tmp_path / "other")
    (tmp_path / "other" / "train.txt").write_text("quite other words make quite another tokeniser\n" * 200)
    (tmp_path / "other" / "valid.txt").write_text((tmp_path / "corpus" / "valid.txt").read_text())
    look = ["callbacks=[attention_entropy]"]
    tables = [
        (inspect(folder, look, out=tmp_path / f"look{number}", data_options=options) / "diagnostics").glob("*.csv")
        for number, options in enumerate([{}, {"data.corpus.folder": str(tmp_path / "other")}])
    ]
    assert len({path.read_text() for table in tables for path in table}) == 1  # the validation texts are the same
    with pytest.raises(LabError, match=r"^data\.vocabulary does nothing beside data\.tokenizer="):
        inspect(folder, look, data_options={"data.vocabulary": 290})
    inspect(folder, look, data_options={"data.validation_size": 4})
    (tmp_path / "corpus" / "more.txt").write_text("one more text, of which the run knows nothing\n" * 200)
    for options in ({}, {"data.validation_size": 5}):
        with pytest.raises(LabError, match="was trained on other data than are found now"):
            inspect(folder, look, data_options=options, force=True)
    (folder / "tokenizer.json").unlink()  # as runs of older versions
    with pytest.raises(LabError, match=r"^data\.corpus\.folder cannot be changed: .* holds no tokenizer\.json"):
        inspect(folder, look, data_options={"data.corpus.folder": str(tmp_path / "other")})
    (tmp_path / "tokenizer.json").write_bytes(own)
    named = {"data.corpus.folder": str(tmp_path / "other"), "data.tokenizer": str(tmp_path)}
    found = inspect(folder, look, out=tmp_path / "named", data_options=named)
    assert (
        next((found / "diagnostics").glob("*.csv")).read_text()
        == next((tmp_path / "look0" / "diagnostics").glob("*.csv")).read_text()
    )


def test_the_page_exports_a_run_to_hugging_face(
    tiny: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = train_in(tmp_path / "runs", "experiment=causal_language_small", *tiny)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "language.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code.replace("runs/causal_language_small/softmax/seed=0", str(folder)), names)
    trained = read_trained(folder)
    x = trained.data().draw_validation(0)["x"]
    with torch.no_grad():
        torch.testing.assert_close(names["model"](x).logits, trained.model()(x))
    assert names["tokenizer"].eos_token_id == names["model"].config.eos_token_id == END
    assert names["tokenizer"].encode("3 and 3") == read_own(folder).encode("3 and 3").ids


def read_own(folder: Path) -> Any:
    """The tokeniser that a run folder keeps."""
    return pytest.importorskip("tokenizers").Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("seeds", ["seed=0", "seeds=2"])
def test_a_given_tokeniser_is_kept_and_its_end_known_to_the_model(
    seeds: str, tiny: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        ["a b"], tokenizers.trainers.BpeTrainer(vocab_size=256, initial_alphabet=alphabet, show_progress=False)
    )
    made.add_special_tokens(["<|endoftext|>"])
    made.save(str(tmp_path / "own.json"))
    typed = ["experiment=causal_language_small", *tiny, f"data.tokenizer={tmp_path / 'own.json'}", seeds, "threads=1"]
    found = run([*typed, f"paths.runs={tmp_path / 'runs'}"])
    assert capsys.readouterr().err.count("data.vocabulary=300 is not used") == 1
    (tmp_path / "own.json").rename(tmp_path / "elsewhere.json")
    for one in found:
        folder = tmp_path / "runs" / one.name
        assert (folder / "tokenizer.json").read_bytes() == (tmp_path / "elsewhere.json").read_bytes()
        model: Any = read_trained(folder).model()
        assert model.model.config.eos_token_id == model.model.config.bos_token_id == 256


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
