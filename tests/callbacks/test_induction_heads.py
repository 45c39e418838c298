"""Induction heads: models whose heads are set by hand, a computation token by token, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import small_gpt2, train_in
from torch import Tensor, nn

import lab
from lab.attention.layers import Attention
from lab.attention.rules.fixed import Fixed
from lab.callbacks.diagnostics.induction_heads import InductionHeads
from lab.config.look_arguments import look_arguments
from lab.console import LabError
from lab.models.observable import Observable
from lab.observation.observe import Findings
from lab.training.inspect_model import inspect_model
from lab.training.inspection import inspect

TOKENS, LENGTH = 12, 16
HALF = LENGTH // 2


class ByHand(Observable):
    """Two layers of one head: the first looks at the token before, the second at what followed a token.

    Width: the token, the token before, the token to come (one-hot, TOKENS each), and the place (one-hot, LENGTH).
    """

    def __init__(self, sharpness: float) -> None:
        super().__init__()
        self.width = 3 * TOKENS + LENGTH
        self.layers = nn.ModuleList([Attention(self.width, 1, Fixed(1, self.width), proj_bias=False) for _ in range(2)])
        token, before, coming = (slice(i * TOKENS, (i + 1) * TOKENS) for i in range(3))
        place = slice(3 * TOKENS, self.width)
        with torch.no_grad():
            for layer in self.layers:
                layer.qkv.weight.zero_()
                layer.proj.weight.copy_(torch.eye(self.width))
            q, k, v = (self.layers[0].qkv.weight[i * self.width : (i + 1) * self.width] for i in range(3))
            q[place, place] = sharpness * torch.diag(
                torch.ones(LENGTH - 1), 1
            )  # the query of a place is the one before
            k[place, place] = torch.eye(LENGTH)
            v[before, token] = torch.eye(TOKENS)
            q, k, v = (self.layers[1].qkv.weight[i * self.width : (i + 1) * self.width] for i in range(3))
            q[token, token] = sharpness * torch.eye(TOKENS)
            k[token, before] = torch.eye(TOKENS)
            k[token, place.start] = -1.0  # the first token, which can only look at itself
            v[coming, token] = torch.eye(TOKENS)
        self.coming = coming

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(*x.shape, self.width)
        state[..., :TOKENS] = nn.functional.one_hot(x, TOKENS)
        state[..., 3 * TOKENS :] = torch.eye(LENGTH)[: x.shape[1]]
        for layer in self.layers:
            state = state + layer(state, is_causal=True)
        return 40 * state[..., self.coming]


def looked(
    model: nn.Module, length: int = LENGTH, tokens: int = TOKENS, **options: Any
) -> tuple[pd.DataFrame, Findings]:
    (found,) = lab.look(model, torch.arange(4 * length).view(4, length) % tokens, [InductionHeads("look", **options)])
    return pd.DataFrame(found.rows).set_index(["layer", "head"]), found


def test_heads_that_attend_to_the_token_before_and_to_what_followed_have_scores_of_one() -> None:
    table, found = looked(ByHand(1000.0))
    assert table.loc[(0, 0), "previous_token"] == pytest.approx(1, abs=1e-5)
    assert table.loc[(1, 0), "prefix_matching"] == pytest.approx(1, abs=1e-5)
    assert table.loc[(0, 0), "prefix_matching"] == pytest.approx(0, abs=1e-5)
    assert table.loc[(-1, -1), "loss_second"] == pytest.approx(0, abs=1e-5)
    assert table.loc[(-1, -1), "loss_first"] > math.log(TOKENS)
    assert found.scalars["prefix_matching/layer_1"] == pytest.approx(1, abs=1e-5)
    assert found.scalars["loss_change"] == pytest.approx(
        table.loc[(-1, -1), "loss_second"] - found.scalars["loss_first"]
    )


def test_even_attention_has_the_scores_of_chance() -> None:
    table, _ = looked(ByHand(0.0))
    seen = 1 / np.arange(1, LENGTH + 1)  # of each query
    for _, row in table.iloc[:2].iterrows():
        assert row["prefix_matching"] == pytest.approx(seen[HALF:].mean(), rel=1e-5)
        assert row["previous_token"] == pytest.approx(seen[1:].mean(), rel=1e-5)
        assert row["prefix_even"] == pytest.approx(seen[HALF:].mean(), rel=1e-5)
        assert row["previous_even"] == pytest.approx(seen[1:].mean(), rel=1e-5)


def test_a_model_of_transformers_token_by_token() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=40,
        n_positions=20,
        n_embd=8,
        n_layer=2,
        n_head=2,
        initializer_range=1.0,
        bos_token_id=7,
        eos_token_id=39,
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    lab.replace_softmax(model, "softmax")
    given: list[Tensor] = []
    hook = model.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    table, _ = looked(model, 14, 40, seed=3)
    hook.remove()
    x_BN = given[-1]
    assert torch.equal(x_BN[:, :7], x_BN[:, 7:]) and not {7, 39} & set(x_BN.flatten().tolist())
    assert all(len(set(row.tolist())) == 7 for row in x_BN[:, :7])
    lab.restore_softmax(model)
    model.set_attn_implementation("eager")
    out = model(x_BN, output_attentions=True)
    for layer, weights in enumerate(out.attentions):
        for head in range(2):
            w = weights[:, head].detach().numpy()
            matching = np.mean([w[b, 7 + i, i + 1] for b in range(4) for i in range(7)])
            previous = np.mean([w[b, n, n - 1] for b in range(4) for n in range(1, 14)])
            row: Any = table.loc[(layer, head)]
            assert [row["prefix_matching"], row["previous_token"]] == pytest.approx([matching, previous], rel=1e-5)
    surprise = -out.logits.log_softmax(-1).detach()
    told = [
        np.mean([surprise[b, n - 1, x_BN[b, n]] for b in range(4) for n in places])
        for places in (range(1, 7), range(8, 14))
    ]
    assert table.loc[(-1, -1), ["loss_first", "loss_second"]].tolist() == pytest.approx(told, rel=1e-5)


@pytest.mark.parametrize("softmax", ["softmax_plus_one", "linear", "local"])
def test_scores_under_other_softmaxes_are_shares(softmax: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=40, n_positions=20, n_embd=8, n_layer=1, n_head=2)
    table, _ = looked(lab.replace_softmax(transformers.GPT2LMHeadModel(config), softmax), 20)
    heads = table.loc[0]
    assert (heads[["prefix_matching", "previous_token"]].to_numpy() <= 1).all()
    assert heads["previous_even"].between(0.03, 0.3).all()


def test_a_model_without_a_head_for_tokens_has_no_loss() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=40, n_positions=20, n_embd=8, n_layer=1, n_head=2)
    table, found = looked(lab.replace_softmax(transformers.GPT2Model(config), "softmax"), 20)
    assert list(table.index) == [(0, 0), (0, 1)] and "loss_first" not in found.scalars


def test_what_does_not_suit_is_refused() -> None:
    transformers = pytest.importorskip("transformers")
    options = {"vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    bert = transformers.BertModel(transformers.BertConfig(**options, intermediate_size=8))
    with pytest.raises(
        LabError, match=r"needs causal attention, and in layer 0 tokens see others than .*: leave it out"
    ):
        looked(lab.replace_softmax(bert, "softmax"))
    with pytest.raises(LabError, match=r"16 tokens in an input and 12 different ones are too few for repeat=9"):
        looked(ByHand(1.0), repeat=9)
    with pytest.raises(LabError, match=r"1 different ones are too few for repeat=2"):
        looked(ByHand(1.0), tokens=1)


@pytest.mark.parametrize("typed", [["experiment=reasoning_small"], ["experiment=max_retrieval", "data.batch_size=4"]])
def test_tasks_without_texts_are_refused_before_training(typed: list[str], tmp_path: Path) -> None:
    own = f"callbacks=[{'reasoning' if 'reasoning' in typed[0] else 'max_retrieval'},induction_heads]"
    with pytest.raises(LabError, match=r"callbacks.induction_heads needs .*: leave it out"):
        train_in(tmp_path, *typed, own, "logger=csv_only", "trainer.max_epochs=1")


def test_it_looks_over_training_and_at_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("train.txt", "valid.txt"):
        (tmp_path / name).write_text("\n".join(f"{number} and {number % 7} are numbers" for number in range(200)))
    run = train_in(
        tmp_path / "runs", "experiment=causal_language_small", f"data.corpus.folder={tmp_path}", "data.vocabulary=300",
        "data.block=16", "data.batch_size=4", "data.epoch_size=40", "data.validation_size=8", "model=llama",
        "model.layers=2", "model.heads=2", "model.width=16", "trainer.max_epochs=2", "logger=csv_only",
        "callbacks=[language,induction_heads]", "softmax=norm_softmax",
    )  # fmt: skip
    table = pd.read_csv(run / "diagnostics" / "induction_heads.csv")
    assert table["step"].unique().tolist() == [0, 10, 20] and len(table) == 3 * 5
    assert (run / "pictures" / "induction_heads.png").exists()
    metrics = pd.read_csv(run / "metrics.csv")
    last = table[table["step"] == 20]
    largest = last[last["layer"] == 1]["prefix_matching"].max()
    assert metrics["induction_heads/prefix_matching/layer_1"].dropna().iloc[-1] == pytest.approx(largest, rel=1e-5)
    folder = inspect(run, ["callbacks=[induction_heads]"])
    own = pd.read_csv(folder / "diagnostics" / "induction_heads.csv")
    np.testing.assert_allclose(own.drop(columns="step"), last.drop(columns=["epoch", "step"]), rtol=1e-4)
    assert (folder / "pictures" / "induction_heads" / "heads.png").exists()


@pytest.mark.parametrize("kind", [[], ["kind=AutoModelForCausalLM"]])
def test_a_folder_of_hugging_face_is_looked_at(kind: list[str], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    small_gpt2(tmp_path / "gpt2")
    typed = [f"model=hf:{tmp_path / 'gpt2'}", *kind, "diagnostics=[induction_heads]", "tokens=12", "inputs=3"]
    inspect_model(**look_arguments([*typed, f"out={tmp_path / 'look'}"]))
    table = pd.read_csv(tmp_path / "look" / "diagnostics" / "induction_heads.csv")
    assert ("loss_change" in table) == bool(kind)
    assert table["prefix_even"].dropna().tolist() == pytest.approx([(1 / np.arange(7, 13)).mean()] * 4, rel=1e-4)
