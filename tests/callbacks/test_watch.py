"""Diagnostics look into models of other libraries: one batch, in Lightning's trainer, in that of Hugging Face."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT
from torch import Tensor, nn

import lab
from lab.attention.normalisers.plus_one import PlusOne
from lab.attention.rules.norm import NormSoftmax
from lab.callbacks.diagnostics.attention_entropy import AttentionEntropy
from lab.callbacks.diagnostics.attention_gradients import AttentionGradients
from lab.callbacks.diagnostics.attention_maps import AttentionMaps
from lab.callbacks.diagnostics.attention_mass import AttentionMass
from lab.callbacks.diagnostics.attention_scores import AttentionScores
from lab.callbacks.diagnostics.gradient_norms import GradientNorms, gradient_norms
from lab.callbacks.diagnostics.linear_probes import LinearProbes
from lab.callbacks.diagnostics.logit_spread import LogitSpread
from lab.callbacks.diagnostics.sink_values import SinkValues
from lab.callbacks.diagnostics.softmax_jacobian import SoftmaxJacobian
from lab.callbacks.diagnostics.temperature_in_use import TemperatureInUse
from lab.callbacks.watch import Watch
from lab.console import LabError
from lab.models.replaced_softmax import NAME, replaced_in
from lab.models.softmaxes import SoftmaxFactory
from lab.observation.attention_statistics import sink_value_norms, softmax_jacobian
from lab.observation.observe import Findings

transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install -e '.[language]'")

ALL = (
    AttentionEntropy,
    AttentionGradients,
    AttentionMaps,
    AttentionMass,
    AttentionScores,
    LogitSpread,
    SinkValues,
    SoftmaxJacobian,
    TemperatureInUse,
)
TOKENS = {"input_ids": torch.arange(36).view(2, 18), "attention_mask": torch.ones(2, 18, dtype=torch.long)}
TOKENS["attention_mask"][1, :5] = 0


@pytest.fixture
def gpt2() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=1)
    return transformers.GPT2LMHeadModel(config)


@pytest.mark.parametrize("normaliser", [None, PlusOne])
def test_every_diagnostic_without_scenes_looks_at_a_batch(gpt2: nn.Module, tmp_path: Path, normaliser: Any) -> None:
    factory = NormSoftmax if normaliser is None else SoftmaxFactory(NormSoftmax, normaliser)
    lab.replace_softmax(gpt2, factory)
    before = torch.get_rng_state()
    found = dict(zip(ALL, lab.look(gpt2, TOKENS, [make(str(tmp_path)) for make in ALL]), strict=True))
    assert torch.equal(torch.get_rng_state(), before) and gpt2.training
    assert len(found[SinkValues].rows) == 4
    entropy = pd.DataFrame(found[AttentionEntropy].rows)
    assert entropy["share"].between(0, 1.001).all()
    # Each query has a temperature of its own keys.
    assert pd.DataFrame(found[TemperatureInUse].rows)["temperature"].between(0, 4.001).all()
    assert not pd.DataFrame(found[LogitSpread].rows)["spread"].isna().any()
    assert {"answer", "sink"} <= set(pd.DataFrame(found[AttentionMass].rows)["region"])


def test_regions_that_not_every_layer_has_keep_their_layers(tmp_path: Path) -> None:
    config = transformers.BartConfig(
        vocab_size=50, d_model=32, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=32,
    )  # fmt: skip
    model = lab.replace_softmax(transformers.BartModel(config))
    inputs = {"input_ids": torch.arange(3, 15).view(1, 12), "decoder_input_ids": torch.arange(3, 8).view(1, 5)}
    (found,) = lab.look(model, inputs, [AttentionMass(str(tmp_path))])
    table = pd.DataFrame(found.rows)
    layers = {region: sorted(set(rows["layer"])) for region, rows in table.groupby("region")}
    assert layers == {"answer": [0, 1, 3], "sink": [0, 1, 2, 3, 4]}  # 2 and 4 look from decoder to encoder
    assert {"answer/layer_3", "sink/layer_4"} <= found.scalars.keys() and "answer/layer_2" not in found.scalars


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_not_looked_at(gpt2: nn.Module, tmp_path: Path, side: str) -> None:
    lab.replace_softmax(gpt2, NormSoftmax)
    alone = {"input_ids": torch.arange(7).unsqueeze(0)}
    pad = (5, 0) if side == "left" else (0, 5)
    padded = {
        "input_ids": nn.functional.pad(alone["input_ids"], pad),
        "attention_mask": nn.functional.pad(torch.ones(1, 7, dtype=torch.long), pad),
    }
    kinds = [AttentionEntropy(str(tmp_path)), AttentionMass(str(tmp_path)), SinkValues(str(tmp_path))]
    for one, other in zip(lab.look(gpt2, alone, kinds), lab.look(gpt2, padded, kinds), strict=True):
        pd.testing.assert_frame_equal(pd.DataFrame(one.rows), pd.DataFrame(other.rows), atol=1e-6)
    padded["attention_mask"] *= 0
    with pytest.raises(lab.LabError, match="nothing but padding"):
        lab.look(gpt2, padded, kinds)


def test_a_model_that_shares_its_layers_is_refused(tmp_path: Path) -> None:
    config = transformers.AlbertConfig(
        vocab_size=50, embedding_size=16, hidden_size=32, num_hidden_layers=3, num_attention_heads=2,
        intermediate_size=32,
    )  # fmt: skip
    model = lab.replace_softmax(transformers.AlbertModel(config), NormSoftmax)
    with pytest.raises(lab.LabError, match="AlbertModel goes through one attention layer 3 times in a pass"):
        lab.look(model, TOKENS, [AttentionEntropy(str(tmp_path))])


def test_a_model_without_the_lab_s_attention_is_refused(gpt2: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(lab.LabError, match=r"GPT2LMHeadModel has no attention of the lab: call lab.replace_softmax"):
        lab.look(gpt2, TOKENS, [AttentionEntropy(str(tmp_path))])


@pytest.mark.parametrize("kind", [nn.Module, L.LightningModule])
def test_a_model_without_a_forward_is_refused(gpt2: nn.Module, tmp_path: Path, kind: Any) -> None:
    class Own(kind):
        def __init__(self) -> None:
            super().__init__()
            self.loss, self.net = nn.CrossEntropyLoss(), lab.replace_softmax(gpt2, NormSoftmax)

    with pytest.raises(lab.LabError, match=r"^Own has no forward: .* that has one, as model\.net may$"):
        lab.look(Own(), TOKENS, [AttentionEntropy(str(tmp_path))])


def test_the_norm_of_the_jacobian_is_that_of_the_matrix() -> None:
    weights = torch.randn(2, 2, 3, 5, dtype=torch.float64).softmax(-1)
    matrices = torch.diag_embed(weights) - weights.unsqueeze(-1) * weights.unsqueeze(-2)
    torch.testing.assert_close(softmax_jacobian(weights), torch.linalg.matrix_norm(matrices).float())
    for rest in (3e-4, 1e-5):  # nearly one-hot, where rounding of float32 would be all of it
        weights = torch.tensor([1 - rest, rest / 3, rest / 3, rest / 3])[None, None, None].float()
        exact = torch.diag_embed(weights.double()) - weights.double().unsqueeze(-1) * weights.double().unsqueeze(-2)
        torch.testing.assert_close(softmax_jacobian(weights), torch.linalg.matrix_norm(exact).float())


def test_the_sink_is_the_key_that_gets_most() -> None:
    weights = torch.tensor([[[[0.8, 0.1, 0.1], [0.6, 0.4, 0.0]]]])
    sink, others = sink_value_norms(weights, torch.tensor([[[[0.1], [3.0], [-5.0]]]]))
    torch.testing.assert_close((sink, others), (torch.tensor([[0.1]]), torch.tensor([[4.0]])))


def test_gradients_of_projections_are_read(gpt2: Any) -> None:
    lab.replace_softmax(gpt2, NormSoftmax)
    gpt2(**TOKENS).logits.square().mean().backward()
    norms = gradient_norms(gpt2)
    first = gpt2.transformer.h[0].attn.c_attn.weight.grad
    assert norms["gradient/k/layer_0"] == pytest.approx(float(first[:, 32:64].abs().mean()))


class Module(L.LightningModule):
    """Somebody's own LightningModule around a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.language_model = model

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.language_model(input_ids=batch, labels=batch).loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def fit(model: nn.Module, watch: Any, **options: Any) -> L.Trainer:
    """Trains on single texts."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    keep = {"ckpt_path": options.pop("ckpt_path", None)}
    trainer = L.Trainer(callbacks=[watch], enable_model_summary=False, accelerator="cpu", **quiet, **options)
    trainer.fit(Module(model), torch.utils.data.DataLoader(TOKENS["input_ids"].repeat(2, 1), batch_size=1), **keep)
    return trainer


def test_every_diagnostic_watches_a_training_and_goes_on_with_its_table(gpt2: nn.Module, tmp_path: Path) -> None:
    lab.replace_softmax(gpt2, SoftmaxFactory(NormSoftmax, PlusOne))

    def watch() -> Watch:
        kinds = [make(str(tmp_path), pictures_every_n_epochs=0) for make in ALL]
        return Watch(gpt2, TOKENS, [*kinds, GradientNorms(str(tmp_path))], every_n_steps=2)

    fit(gpt2, watch(), max_steps=4).save_checkpoint(tmp_path / "four.ckpt")
    fit(gpt2, watch(), max_steps=8, max_epochs=-1, ckpt_path=tmp_path / "four.ckpt")
    for name in ("attention_mass", "attention_entropy"):
        assert sorted(pd.read_csv(tmp_path / "diagnostics" / f"{name}.csv")["step"].unique()) == [0, 2, 4, 6, 8]
    norms = pd.read_csv(tmp_path / "diagnostics" / "gradient_norms.csv")
    assert sorted(norms["step"].unique()) == [0, 2, 4, 6] and (norms[["q", "k", "v"]] > 0).all(axis=None)
    watch().end(8)  # of a training that has nothing left to do
    assert sorted(pd.read_csv(tmp_path / "diagnostics" / "attention_mass.csv")["step"].unique()) == [0, 2, 4, 6, 8]
    # Pictures over training alone.
    assert {"attention_mass.png", "gradient_norms.png"} <= {path.name for path in (tmp_path / "pictures").iterdir()}
    assert not [path for path in (tmp_path / "pictures").iterdir() if path.is_dir()]


def test_what_a_watch_cannot_do_is_said(gpt2: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(lab.LabError, match="LinearProbes cannot be used during training"):
        Watch(gpt2, TOKENS, [LinearProbes(str(tmp_path))])
    with pytest.raises(lab.LabError, match=r"two diagnostics would write .*attention_entropy\.csv"):
        Watch(gpt2, TOKENS, [AttentionEntropy(str(tmp_path)), AttentionEntropy(str(tmp_path))])
    with pytest.raises(lab.LabError, match=r"'gpt2' is not a model: give the torch.nn.Module"):
        Watch("gpt2", TOKENS, [])  # type: ignore[arg-type]
    lab.replace_softmax(gpt2, "heat_treatment")
    wrong: tuple[Any, ...] = (LinearProbes("look"), GradientNorms("look"))
    for one in wrong:
        with pytest.raises(lab.LabError, match=f"{type(one).__name__} cannot look at a batch"):
            lab.look(gpt2, TOKENS, [one])
    empty = {name: tensor[:0] for name, tensor in TOKENS.items()}
    with pytest.raises(lab.LabError, match="x is an empty batch"):
        lab.look(gpt2, empty, [AttentionEntropy("look")])
    with pytest.raises(lab.LabError, match="x holds no tensor of inputs"):
        lab.look(gpt2, {"use_cache": False}, [AttentionEntropy("look")])
    with pytest.raises(lab.LabError, match=r"schedule over all of training, .* give it max_steps"):
        fit(gpt2, Watch(gpt2, TOKENS, []), max_epochs=-1, max_time={"seconds": 30})


def test_a_training_that_begins_again_is_told_from_one_that_goes_on(gpt2: nn.Module, tmp_path: Path) -> None:
    lab.replace_softmax(gpt2)
    watch = Watch(gpt2, TOKENS, [SinkValues(str(tmp_path))], every_n_steps=2)
    fit(gpt2, watch, max_steps=2).save_checkpoint(tmp_path / "two.ckpt")
    fit(gpt2, watch, max_steps=5, max_epochs=-1, ckpt_path=tmp_path / "two.ckpt")
    assert _steps(tmp_path) == [0, 2, 4, 5]
    fit(gpt2, watch, max_steps=6, max_epochs=-1, ckpt_path=tmp_path / "two.ckpt")
    assert _steps(tmp_path) == [0, 2, 4, 6]  # 5 was of the other training
    watch._seen = 0  # as after a training that was broken off before its second look
    with pytest.raises(lab.LabError, match=r"sink_values\.csv is of an earlier training"):
        fit(gpt2, watch, max_steps=4)


def test_gradients_that_are_not_there_are_told(
    gpt2: nn.Module, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, parameter in lab.replace_softmax(gpt2).named_parameters():
        parameter.requires_grad_("mlp" in name)
    fit(gpt2, Watch(gpt2, TOKENS, [GradientNorms(str(tmp_path))], every_n_steps=1), max_steps=3)
    assert capsys.readouterr().err.count("gradient_norms has nothing to tell of GPT2LMHeadModel") == 1


class Vectors(Module):
    """Trains on vectors, which a trainer converts to its precision."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.language_model(batch).square().mean()


class TwoOptimisers(Module):
    """Steps by hand."""

    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for optimizer in self.optimizers():  # type: ignore[union-attr]
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parameters(), lr=0.0) for _ in range(2)]


def fit_vectors(module: Module, watch: Watch, **options: Any) -> None:
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = L.Trainer(
        callbacks=[watch], enable_model_summary=False, accelerator="cpu", max_steps=2, **quiet, **options
    )
    trainer.fit(module, torch.utils.data.DataLoader(torch.randn(8, 5, 16), batch_size=2))


@pytest.mark.parametrize("precision", ["bf16-true", "64-true", "bf16-mixed"])
def test_the_probe_has_the_precision_of_the_training(precision: str, tmp_path: Path) -> None:
    model = lab.replace_softmax(nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 8, batch_first=True), 1))
    watch = Watch(model, torch.randn(2, 5, 16), [SinkValues(str(tmp_path))], every_n_steps=1)
    fit_vectors(Vectors(model), watch, precision=precision)
    assert _steps(tmp_path) == [0, 1, 2]


def test_a_schedule_under_several_optimisers_is_refused() -> None:
    model = lab.replace_softmax(nn.TransformerEncoderLayer(16, 2, 8, batch_first=True), "heat_treatment")
    with pytest.raises(lab.LabError, match="with several optimisers the trainer counts the steps of all"):
        fit_vectors(TwoOptimisers(model), Watch(model, torch.randn(2, 5, 16), []))


def test_any_lightning_trainer_is_watched(gpt2: nn.Module, tmp_path: Path) -> None:
    lab.replace_softmax(gpt2, "heat_treatment")
    watch = Watch(gpt2, TOKENS, [AttentionEntropy(str(tmp_path))], every_n_steps=2)
    fit(gpt2, watch, max_steps=4)
    table = pd.read_csv(tmp_path / "diagnostics" / "attention_entropy.csv")
    assert sorted(table["step"].unique()) == [0, 2, 4]
    assert (tmp_path / "pictures" / "attention_entropy.png").exists()
    # Half of training is done before the last step is taken.
    assert float(replaced_in(gpt2)[0].rule.tau) == 4.0
    with pytest.raises(lab.LabError, match=r"attention_entropy\.csv is of an earlier training"):
        fit(gpt2, watch, max_steps=4)
    assert table.equals(pd.read_csv(tmp_path / "diagnostics" / "attention_entropy.csv"))
    watch.force = True
    fit(gpt2, watch, max_steps=2)
    assert sorted(pd.read_csv(tmp_path / "diagnostics" / "attention_entropy.csv")["step"].unique()) == [0, 2]


def test_a_watch_of_another_model_than_the_one_that_is_trained_is_refused(gpt2: Any) -> None:
    from lab.callbacks.watch_trainer import WatchTrainer

    trained = lab.replace_softmax(copy.deepcopy(gpt2), "heat_treatment")  # as by a cell of a notebook that runs again
    watch = Watch(lab.replace_softmax(gpt2, "heat_treatment"), TOKENS, [])
    told = r"^the watch looks at another model than the one that is trained: make it again after the model$"
    with pytest.raises(lab.LabError, match=told):
        fit(trained, watch, max_steps=1)
    with pytest.raises(lab.LabError, match=told):
        WatchTrainer(watch).on_train_begin(None, None, None, model=trained)
    assert repr(watch) == "Watch(GPT2LMHeadModel, [], every_n_steps=100)"
    # A part of the model, something around it, and modules whose parameters FSDP has taken over.
    watch.check_trained(Module(gpt2))
    Watch(torch.compile(gpt2), TOKENS, []).check_trained(gpt2)
    Watch(gpt2.transformer.h[0], TOKENS, []).check_trained(torch.compile(gpt2))
    for module in gpt2.modules():
        module._parameters.clear()
    watch.check_trained(Module(gpt2))


def test_a_watch_in_the_wrong_trainer_says_how_it_is_given(gpt2: nn.Module, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="the Trainer of transformers needs it: pip install accelerate")
    from lab.callbacks.watch_trainer import WatchTrainer

    watch = Watch(lab.replace_softmax(gpt2), TOKENS, [AttentionEntropy(str(tmp_path))], every_n_steps=5)
    arguments = transformers.TrainingArguments(str(tmp_path / "out"), use_cpu=True, report_to=[])
    with pytest.raises(lab.LabError, match=r"takes a watch wrapped: callbacks=\[WatchTrainer\(watch\)\]"):
        transformers.Trainer(gpt2, arguments, callbacks=[watch])
    with pytest.raises(lab.LabError, match=r"takes a watch as it is: callbacks=\[watch\], without WatchTrainer"):
        fit(gpt2, WatchTrainer(watch), max_steps=1)


def test_a_loop_that_counts_from_one_does_not_overwrite_an_earlier_training(gpt2: nn.Module, tmp_path: Path) -> None:
    lab.replace_softmax(gpt2, NormSoftmax)

    def train(first: int, end: int, **options: Any) -> list[int]:
        watch = Watch(gpt2, TOKENS, [AttentionEntropy(str(tmp_path))], every_n_steps=2, **options)
        watch.begin()
        for step in range(first, end):
            watch.at(step, 9)
        watch.end(end - 1)
        return _steps(tmp_path, "attention_entropy")

    assert train(1, 6) == [2, 4, 5]
    with pytest.raises(lab.LabError, match=r"attention_entropy\.csv is of an earlier training: force=True"):
        train(1, 4)
    assert train(5, 8) == [2, 4, 5, 6, 7]  # goes on
    assert train(1, 4, force=True) == [2, 3]


def test_steps_that_fall_back_are_a_new_training_also_without_begin(gpt2: nn.Module, tmp_path: Path) -> None:
    lab.replace_softmax(gpt2, NormSoftmax)
    watch = Watch(gpt2, TOKENS, [AttentionEntropy(str(tmp_path))], every_n_steps=2)
    for step in range(5):
        watch.at(np.int64(step), torch.tensor(5))
    watch.end(5)
    with pytest.raises(lab.LabError, match=r"attention_entropy\.csv is of an earlier training"):
        watch.at(0, 5)
    watch.force = True
    watch.at(0, 5)
    watch.end(1)
    assert _steps(tmp_path, "attention_entropy") == [0, 1]


def test_tables_are_read_back_once(gpt2: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.replace_softmax(gpt2, NormSoftmax)
    own, read = AttentionEntropy(str(tmp_path)), []
    monkeypatch.setattr(own, "take_back", read.append)
    watch = Watch(gpt2, TOKENS, [own], every_n_steps=100)
    for step in range(5, 9):
        watch.at(step, 200)
    assert read == [5]


@pytest.mark.parametrize(("step", "steps"), [(-1, 9), (2.5, 9), (0, -1), (0, 0)])
def test_what_is_no_number_of_steps_is_refused(gpt2: nn.Module, tmp_path: Path, step: Any, steps: Any) -> None:
    lab.replace_softmax(gpt2, NormSoftmax)
    watch = Watch(gpt2, TOKENS, [AttentionEntropy(str(tmp_path))])
    with pytest.raises(lab.LabError, match="whole numbers of steps"):
        watch.at(step, steps)
    for calls in (watch.gradients, watch.last, watch.end):
        for wrong in (-1, 20.0, "20"):
            with pytest.raises(lab.LabError, match=r"whole numbers of steps, .* got "):
                calls(wrong)  # type: ignore[operator]


def test_hugging_face_s_callbacks_call_it(gpt2: nn.Module, tmp_path: Path) -> None:
    from transformers.trainer_callback import CallbackHandler

    from lab.callbacks.watch_trainer import WatchTrainer

    lab.replace_softmax(gpt2, NormSoftmax)
    callback = WatchTrainer(Watch(gpt2, TOKENS, [SinkValues(str(tmp_path))], every_n_steps=3))
    # As its trainer calls all callbacks, step by step.
    handler = CallbackHandler([callback], gpt2, None, None, None)
    state, control = transformers.TrainerState(max_steps=4, is_world_process_zero=True), transformers.TrainerControl()
    for state.global_step in range(4):
        handler.on_step_begin(None, state, control)
        handler.on_step_end(None, state, control)
    state.global_step = 4
    handler.on_train_end(None, state, control)
    assert _steps(tmp_path) == [0, 3, 4]


def test_hugging_face_s_trainer_is_watched(gpt2: nn.Module, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="the Trainer of transformers needs it: pip install accelerate")
    from lab.callbacks.watch_trainer import WatchTrainer

    lab.replace_softmax(gpt2, "heat_treatment")
    kinds = [SinkValues(str(tmp_path)), GradientNorms(str(tmp_path))]
    watch = WatchTrainer(Watch(gpt2, TOKENS, kinds, every_n_steps=3))
    quiet = {"report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
    arguments = transformers.TrainingArguments(str(tmp_path / "out"), max_steps=4, use_cpu=True, **quiet)
    texts = [{"input_ids": row, "labels": row} for row in TOKENS["input_ids"].repeat(8, 1)]
    transformers.Trainer(gpt2, arguments, train_dataset=texts, callbacks=[watch]).train()
    assert _steps(tmp_path) == [0, 3, 4]
    assert (pd.read_csv(tmp_path / "diagnostics" / "gradient_norms.csv").groupby("step")["q"].mean() > 0).sum() == 2
    # Half of training is done before the last step is taken.
    assert float(replaced_in(gpt2)[0].rule.tau) == 4.0
    with pytest.raises(lab.LabError, match=r"SinkValues is no Watch: give one, as in WatchTrainer"):
        WatchTrainer(kinds[0])  # type: ignore[arg-type]


def test_the_last_look_is_at_the_last_step_and_not_at_the_best(gpt2: nn.Module, tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="the Trainer of transformers needs it: pip install accelerate")
    from lab.callbacks.watch_trainer import WatchTrainer

    lab.replace_softmax(gpt2)
    watch = WatchTrainer(Watch(gpt2, TOKENS, [SinkValues(str(tmp_path))], every_n_steps=2))
    quiet = {"report_to": [], "logging_strategy": "no", "disable_tqdm": True, "learning_rate": 0.05}
    saved = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "greater_is_better": True}
    options: Any = {**quiet, **saved, **best, "max_steps": 4, "use_cpu": True}
    arguments = transformers.TrainingArguments(str(tmp_path / "out"), **options)
    texts = [{"input_ids": row, "labels": row} for row in TOKENS["input_ids"].repeat(8, 1)]
    transformers.Trainer(gpt2, arguments, train_dataset=texts, eval_dataset=texts[:2], callbacks=[watch]).train()
    table = pd.read_csv(tmp_path / "diagnostics" / "sink_values.csv")
    rows = [table[table["step"] == step].drop(columns="step").reset_index(drop=True) for step in (2, 4)]
    assert _steps(tmp_path) == [0, 2, 4] and not rows[0].equals(rows[1])


def _steps(folder: Path, diagnostic: str = "sink_values") -> list[int]:
    return sorted(pd.read_csv(folder / "diagnostics" / f"{diagnostic}.csv")["step"].unique())


def test_the_readme_s_three_lines_run(gpt2: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(import lab\nfrom .*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    # Nothing is downloaded here.
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", lambda name: gpt2)
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda name: lambda *_, **__: TOKENS)
    exec(code, {})
    assert (tmp_path / "entropy.png").exists()


def test_the_page_s_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "models.md").read_text(), re.DOTALL):
        exec(code, names)
    assert (tmp_path / "entropy.png").exists()
    assert isinstance(names["watch"], Watch)
    model = lab.replace_softmax(names["model"], "learnable_temperature")
    learned = {name for name, _ in model.named_parameters() if NAME in name}
    for kind, decayed in ((transformers.Trainer, learned), (names["SparingTrainer"], set())):
        found = set(object.__new__(kind).get_decay_parameter_names(model))
        assert found & learned == decayed and "transformer.h.0.attn.c_attn.weight" in found


def test_what_a_mask_hides_is_no_weight_and_a_single_key_no_choice(gpt2: nn.Module) -> None:
    with torch.no_grad():
        for block in gpt2.transformer.h:
            block.attn.c_attn.weight.zero_()  # every query attends to all it sees alike
    lab.replace_softmax(gpt2, "softmax")
    kinds = [AttentionEntropy("look"), AttentionScores("look"), TemperatureInUse("look"), SinkValues("look")]
    whole = TOKENS["input_ids"] + 1
    entropy, scores, _, _ = lab.look(gpt2, whole, kinds)
    assert all(row["share"] == pytest.approx(1, abs=1e-6) for row in entropy.rows)
    # Two texts, two heads, 18 queries that see 1 to 18 keys.
    assert all(sum(row[f"count_{place:02d}"] for place in range(25)) == 2 * 2 * 171 for row in scores.rows)
    # A text of one token has no choice anywhere, and changes nothing of the other.
    padded = {"input_ids": whole, "attention_mask": torch.ones(2, 18, dtype=torch.long), "use_cache": False}
    padded["attention_mask"][1, 1:] = 0
    alone = lab.look(gpt2, whole[:1], kinds)
    beside = lab.look(gpt2, padded, kinds)
    for one, other, names in zip(alone, beside, (["share"], [], ["temperature", "spread"], ["others"]), strict=True):
        for name in names:
            assert [row[name] for row in other.rows] == pytest.approx([row[name] for row in one.rows]), name


def test_a_decoder_has_a_padding_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 32}
    layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    model = transformers.BartModel(transformers.BartConfig(vocab_size=50, **sizes, **layers))
    lab.replace_softmax(model, "softmax")
    tokens = torch.arange(4, 28).view(2, 12)
    x = {"input_ids": tokens, "decoder_input_ids": tokens, "attention_mask": torch.ones(2, 12), "use_cache": False}
    x["attention_mask"][1, 8:] = 0
    seen: list[list[tuple[int, ...]]] = []
    maps = AttentionEntropy("look")
    see = maps.see
    monkeypatch.setattr(
        maps, "see", lambda chunk: seen.append([w["weights"].shape for w in chunk.layers]) or see(chunk)
    )
    (found,) = lab.look(model, x, [maps])
    assert seen == [[(1, 2, n, n), (1, 2, 12, 12), (1, 2, 12, n)] for n in (12, 8)]
    assert len(found.rows) == 6
    x["decoder_attention_mask"] = torch.ones(2, 12)
    x["decoder_attention_mask"][0, 5:] = 0
    seen.clear()
    lab.look(model, x, [maps])
    assert seen == [[(1, 2, n, n), (1, 2, m, m), (1, 2, m, n)] for n, m in ((12, 5), (8, 12))]


def test_layers_may_differ_in_heads_and_tokens(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model("pvt_v2_b0")
    lab.replace_softmax(model, "softmax")
    kinds = [make(str(tmp_path)) for make in ALL if make is not AttentionMaps]
    for found in lab.look(model, torch.randn(2, 3, 64, 64), kinds):
        assert {row["layer"] for row in found.rows} == set(range(8))
        for make in found.figures.values():
            make()
    with pytest.raises(lab.LabError, match="these differ in heads or tokens"):
        lab.look(model, torch.randn(2, 3, 64, 64), [AttentionMaps(str(tmp_path))])


def test_many_inputs_are_looked_at_in_pieces(gpt2: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.replace_softmax(gpt2, NormSoftmax)
    kinds = [AttentionEntropy("look"), TemperatureInUse("look")]
    x = {"input_ids": TOKENS["input_ids"].repeat(3, 1)}
    whole = lab.look(gpt2, x, kinds)
    monkeypatch.setattr("lab.observation.observe._CHUNK_ELEMENTS", 1)
    for one, other in zip(whole, lab.look(gpt2, x, kinds), strict=True):
        pd.testing.assert_frame_equal(pd.DataFrame(one.rows), pd.DataFrame(other.rows))


def test_where_nobody_looks_out_for_a_moment_nothing_is_grey(gpt2: nn.Module, tmp_path: Path) -> None:
    table = pd.DataFrame({"step": [0, 1], "layer": 0, "head": 0, "entropy": 1.0, "share": 0.5})
    for moment, told in ((None, True), (1, True), (float("nan"), False)):
        figure = AttentionEntropy(str(tmp_path)).history(table, moment)
        labels = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
        assert ("before any Eureka-moment" in labels) == told


class Slanted(nn.Module):
    """Attention of two heads whose model adds a bias to the scores, or hides all keys from the first query."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.mask = 2, 4, mask
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.seen: tuple[Tensor, Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(-1, (2, 4)).transpose(1, 2) for part in (self.query, self.key, self.value))
        self.seen = q, k, v
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask).transpose(1, 2).flatten(2)


def test_derivatives_are_those_of_attention_with_the_bias_of_its_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    places = torch.arange(6.0)
    layer = Slanted(-0.8 * (places[:, None] - places).abs())
    model = lab.replace_softmax(nn.Sequential(layer), "softmax")
    (found,) = lab.look(model, 3 * torch.randn(3, 6, 8), [AttentionGradients(str(tmp_path))])
    assert layer.seen is not None
    leaves = [part.detach().requires_grad_() for part in layer.seen]
    q, k, v = leaves
    F.scaled_dot_product_attention(q, k, v, attn_mask=layer.mask).sum().backward()
    expected = [leaf.grad.abs().mean().item() for leaf in leaves if leaf.grad is not None]
    assert [row["derivative"] for row in found.rows] == pytest.approx(expected, rel=1e-4)


def test_a_query_that_sees_nothing_is_left_out(tmp_path: Path) -> None:
    torch.manual_seed(0)
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    x, looks = torch.randn(3, 5, 8), []
    diagnostics = [kind(str(tmp_path)) for kind in (LogitSpread, AttentionEntropy, SoftmaxJacobian)]
    for hidden in (False, True):
        torch.manual_seed(1)
        layer = Slanted(mask & torch.tensor([not hidden, True, True, True, True])[:, None])
        found = lab.look(lab.replace_softmax(nn.Sequential(layer), "softmax"), x, diagnostics)
        looks.append(pd.concat([pd.DataFrame(one.rows) for one in found], axis=1))
    # With its one key, the first of five queries has a spread, an entropy and a Jacobian of 0, a smallest weight of 1.
    whole, without = looks
    for name in ("spread", "entropy", "jacobian"):
        assert without[name].to_numpy() == pytest.approx(whole[name].to_numpy() * 5 / 4, rel=1e-5)
    assert without["share"].to_numpy() == pytest.approx(whole["share"].to_numpy(), rel=1e-5)
    smallest = (whole["smallest_weight"].to_numpy() * 5 - 1) / 4
    assert without["smallest_weight"].to_numpy() == pytest.approx(smallest, rel=1e-5)


@pytest.fixture
def normed() -> nn.Module:
    return lab.replace_softmax(nn.Sequential(Slanted(torch.zeros(5, 5))), "softmax")


def test_a_mistake_in_an_observer_is_told_with_its_line(normed: nn.Module, tmp_path: Path) -> None:
    class Broken(AttentionEntropy):
        def see(self, chunk: Any) -> Any:
            return chunk.batch["latents"]["colour"]

    with pytest.raises(LabError, match=r"Broken\.see fails: KeyError: 'colour' \(.*test_watch\.py"):
        lab.look(normed, torch.randn(3, 5, 8), [Broken(str(tmp_path))])


def test_a_mistake_in_a_figure_is_told_with_its_line(normed: nn.Module, tmp_path: Path) -> None:
    class Broken(AttentionEntropy):
        def conclude(self, seen: list[Any]) -> Findings:
            return Findings(figures={"bars": lambda: figures["missing"]})

    figures: dict[str, Any] = {}

    broken = Broken(str(tmp_path))
    (found,) = lab.look(normed, torch.randn(3, 5, 8), [broken])
    with pytest.raises(LabError, match=r"Broken: the figure bars fails: KeyError: .*test_watch\.py"):
        broken.draw_found(found)
    with pytest.raises(LabError, match="Broken: the figure bars is a str: return Matplotlib's figure"):
        broken.draw_found(Findings(figures={"bars": lambda: "a picture"}))  # type: ignore[dict-item, return-value]


def test_a_row_may_not_take_a_column_of_the_lab(normed: nn.Module, tmp_path: Path) -> None:
    class Dated(AttentionEntropy):
        def conclude(self, seen: list[Any]) -> Findings:
            return Findings([{"layer": 0, "epoch": 3}])

    dated = Dated(str(tmp_path))
    (found,) = lab.look(normed, torch.randn(3, 5, 8), [dated])
    with pytest.raises(LabError, match="Dated finds rows with 'epoch', a column that the lab writes itself"):
        dated.keep(found, 1, 10)
    assert not dated.path.exists()
