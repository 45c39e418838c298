"""The CLRS-Text experiments train offline under any softmax, resume, and decode what they have learnt."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch
from conftest import ROOT, assert_resumed_alike, made_once, summary_of, train_in

from lab.attention.rules.adaptive import AdaptiveTemperature
from lab.attention.rules.norm import NormSoftmax
from lab.console import LabError
from lab.datasets.loading import IGNORED
from lab.datasets.text.tokenizers import PretrainedTokenizer
from lab.models.answering import AnsweringModel, PretrainedAnsweringModel
from lab.train import run
from lab.training.stored import load_config

transformers = pytest.importorskip("transformers", reason="the extra language is not installed")

TINY = (
    "data.batch_size=4", "data.epoch_size=40", "data.validation_size=8", "trainer.max_epochs=2", "logger=csv_only",
    "diagnostics.every_n_epochs=1", "diagnostics.pictures_every_n_epochs=2",
)  # fmt: skip
SMALL = (
    "experiment=clrs_text_small", *TINY, "data.problems.algorithms=[minimum,bfs]", "data.problems.smallest=4",
    "data.problems.largest=5", "data.problems.validation_sizes=[4,6]", "model.layers=2", "model.heads=2",
    "model.width=16",
)  # fmt: skip
LINES = ROOT / "tests" / "datasets" / "clrs_text" / "train.jsonl"


@pytest.fixture(scope="session")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds a Gemma of random weights with a tokenizer, and beside them problems."""

    def make(folder: Path) -> None:
        from tokenizers.implementations import ByteLevelBPETokenizer

        tokenizer = ByteLevelBPETokenizer()
        tokenizer.train_from_iterator([LINES.read_text()], vocab_size=280, special_tokens=["<s>", "</s>"])
        transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizer._tokenizer, bos_token="<s>", eos_token="</s>"
        ).save_pretrained(folder / "model")
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        config = transformers.GemmaConfig(vocab_size=290, num_key_value_heads=1, head_dim=8, **sizes)
        transformers.GemmaForCausalLM(config).save_pretrained(folder / "model")
        for name in ("train", "validation"):
            shutil.copy(LINES, folder / f"{name}.jsonl")

    return made_once(tmp_path_factory, "gemma", make)


def test_twenty_steps_of_the_small_one(tmp_path: Path) -> None:
    told = ("softmax=adaptive_temperature", "softmax.when=always", "callbacks.eureka.threshold=0.999")
    folder = train_in(tmp_path, *SMALL, *told)
    summary = summary_of(folder)
    assert (summary["status"], summary["steps"], summary["eureka"]["happened"]) == ("finished", 20, False)
    metrics = summary["metrics"]
    assert 0 < metrics["val/loss"] < 6 and "val/accuracy_exact_match_out_of_distribution" in metrics
    table = pd.read_csv(folder / "diagnostics" / "exact_match.csv")
    assert set(zip(table["algorithm"], table["size"], table["trained"], strict=True)) == {
        (name, size, size == 4) for name in ("minimum", "bfs") for size in (4, 6)
    }
    assert table["step"].unique().tolist() == [0, 10, 20] and table["problems"].eq(2).all()
    last = table[table["step"] == 20]
    assert last["right"].sum() / last["problems"].sum() == pytest.approx(metrics["val/accuracy_exact_match"])
    assert {path.name for path in (folder / "pictures").rglob("*.png")} >= {"exact_match.png", "size_epoch_00002.png"}
    assert load_config(folder).data.problems.largest == 5  # what lab.inspect makes it of


def test_twenty_steps_of_a_pretrained_gemma_on_files(gemma: Path, tmp_path: Path) -> None:
    told = ("experiment=clrs_text", *TINY, f"model.pretrained={gemma / 'model'}", f"data.problems.folder={gemma}")
    folder = train_in(tmp_path, *told, "softmax=norm_softmax", "data.validation_size=12")
    summary = summary_of(folder)
    assert (summary["status"], summary["steps"]) == ("finished", 20)
    assert len(pd.read_csv(folder / "diagnostics" / "exact_match.csv")) == 3 * 12
    # A stored config is data: nothing that it names is fetched.
    trust = ["lab.datasets.text.tokenizers"]
    both = r"PretrainedTokenizer, .*PretrainedAnsweringModel are not made: .*trust=\[lab\.datasets\.text\.tokenizers,"
    with pytest.raises(LabError, match=both):
        load_config(folder)
    also = r"PretrainedAnsweringModel is not made: .*trust=\[lab\.datasets\.text\.tokenizers,lab\.models\.answering\]"
    with pytest.raises(LabError, match=also):
        load_config(folder, trust)
    assert load_config(folder, [*trust, "lab.models.answering"]).model.checkpointing


def test_a_resumed_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    options = (*SMALL, "checkpoints.every_n_steps=7", "callbacks=language", "callbacks.eureka.plateau_share=0.9")
    assert_resumed_alike(tmp_path, *options)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize("softmax", [None, NormSoftmax, lambda **heads: AdaptiveTemperature(**heads, when="always")])
def test_decoding_finds_right_what_one_pass_does(architecture: str, softmax) -> None:
    torch.manual_seed(0)
    model = AnsweringModel(40, 32, architecture, 2, 2, 16, softmax=softmax).eval()
    # What the model itself says after questions of three lengths, token by token and without a cache.
    length, said = [3, 7, 5], []
    for count in length:
        tokens = torch.randint(40, (1, count))
        for _ in range(4):
            tokens = torch.cat([tokens, model.model(tokens).logits[:, -1:].argmax(-1)], dim=1)
        said.append(tokens[0])
    x = torch.nn.utils.rnn.pad_sequence([row[:-1] for row in said], batch_first=True)
    places = torch.tensor([[count - 1 + token for token in range(4)] for count in length])
    y = torch.stack([row[-4:] for row in said])
    places[1, 3], y[1, 3] = 0, IGNORED  # a shorter answer
    y[2, 2] = (y[2, 2] + 1) % 40  # a wrong one
    one_pass = ((model((x, places)).argmax(-1) == y) | (y == IGNORED)).all(1)
    assert model.solves((x, places), y).tolist() == one_pass.tolist() == [True, True, False]
    assert model.solves((x, places), (y + 1) % 40).tolist() == [False] * 3


def test_a_long_question_is_decoded_beside_a_long_answer() -> None:
    """Each fits the context; both together, question by question and token by token, do not."""
    torch.manual_seed(0)
    model = AnsweringModel(40, 12, "gpt2", 1, 2, 16).eval()
    x = torch.randint(40, (3, 12))
    places = torch.tensor([[10] + [0] * 7, [*range(3, 11)], [10] + [0] * 7])
    y = model((x, places)).argmax(-1)
    y[[0, 2], 1:] = IGNORED
    for place in range(4, 12):  # what the model itself says
        x[1, place] = y[1, place - 4]
        y[1] = model((x[1:2], places[1:2])).argmax(-1)[0]
    y[2, 0] = (y[2, 0] + 1) % 40
    assert model.solves((x, places), y).tolist() == [True, True, False]


def test_tokens_beyond_those_of_the_data_are_never_said() -> None:
    torch.manual_seed(0)
    model = AnsweringModel(40, 32, "llama", 2, 2, 16).eval()
    model.num_classes = 30
    tokens = torch.randint(30, (2, 5))
    with torch.no_grad():
        # The model would say the 31st token and nothing else.
        model.model.get_output_embeddings().weight[30] = 100 * model.model.model(tokens).last_hidden_state.mean((0, 1))
    x, places = tokens, torch.tensor([[4], [4]])
    y = model((x, places)).argmax(-1)
    assert model.model(tokens).logits[:, -1].argmax(-1).tolist() == [30, 30] and y.max() < 30
    assert model.solves((x, places), y).tolist() == [True, True]


def test_penalties_that_come_with_a_model_do_not_decode(gemma: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    pretrained = AutoModelForCausalLM.from_pretrained(str(gemma / "model"))
    pretrained.generation_config.repetition_penalty = 1.3
    pretrained.save_pretrained(tmp_path / "model")
    assert PretrainedAnsweringModel(str(tmp_path / "model"), 280, 64).model.generation_config.repetition_penalty is None


def test_what_cannot_be_is_refused_and_leaves_nothing(gemma: Path, tmp_path: Path) -> None:
    refused = [
        ([*SMALL, "seeds=2"], "seeds cannot train together on batches that differ in shape"),
        ([*SMALL, "model=gpt2"], "CausalLanguageModel does not fit this data"),
        (
            ["experiment=clrs_text_small", "data/problems=folder", "paths.data=none"],
            r"no problems in .*data\.problems\.validation=validation\*\.jsonl",
        ),
        (["experiment=reasoning", "callbacks=[reasoning,exact_match]"], "leave it out, or take exp"),
    ]
    for options, said in refused:
        with pytest.raises(LabError, match=said):
            run([*options, f"paths.runs={tmp_path / 'runs'}", "threads=1"])
    none = str(tmp_path / "none")
    with pytest.raises(ValueError, match=r"model\.pretrained=.*none cannot be read: it is no folder"):
        PretrainedAnsweringModel(none, 10)
    with pytest.raises(ValueError, match=r"data\.tokenizer\.name=\./none .*cannot be read: it is no folder"):
        PretrainedTokenizer("./none").encode("")
    with pytest.raises(ValueError, match="knows 290 tokens, and the data has 300"):
        PretrainedAnsweringModel(str(gemma / "model"), 300)
    with pytest.raises(ValueError, match=r"takes 8,192 tokens: lower data\.longest=9000"):
        PretrainedAnsweringModel(str(gemma / "model"), 280, 9000)
