"""Diagnostics see what is there, leave tables and pictures, and never change what they watch."""

from __future__ import annotations

import gc
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from conftest import SMALL, assert_same_weights, made_once, newest, only_run, set_status, summary_of, torchrun, train_in

from lab.attention.rules.fixed import Fixed
from lab.callbacks.diagnostics.attention_entropy import AttentionEntropy
from lab.callbacks.diagnostics.attention_gradients import AttentionGradients
from lab.callbacks.diagnostics.attention_maps import AttentionMaps
from lab.callbacks.diagnostics.attention_mass import AttentionMass
from lab.callbacks.diagnostics.attention_scores import AttentionScores
from lab.callbacks.diagnostics.code_length import CodeLength
from lab.callbacks.diagnostics.linear_probes import LinearProbes
from lab.callbacks.diagnostics.logit_spread import LogitSpread
from lab.callbacks.diagnostics.probe import Probe
from lab.callbacks.diagnostics.sink_values import SinkValues
from lab.callbacks.diagnostics.softmax_jacobian import SoftmaxJacobian
from lab.callbacks.diagnostics.temperature_in_use import TemperatureInUse
from lab.config.look_arguments import look_arguments
from lab.console import LabError
from lab.datasets.drawn import DrawnDigits
from lab.inspect import main
from lab.models.compact_vit import CompactViT
from lab.observation.observe import observe
from lab.train import run as train_with
from lab.training.inspection import inspect

# Every diagnostic there is: a new one is tested by being there. That of answers in text has tests of its own.
CONFIGS = Path(__file__).parent.parent.parent / "configs" / "callbacks"
NAMES = sorted(
    path.stem
    for path in CONFIGS.glob("*.yaml")
    if path.stem not in ("exact_match", "induction_heads")
    and "every_n_epochs: ${diagnostics" in path.read_text()
    and "defaults" not in path.read_text()
)
LISTED = ",".join(NAMES)
# Each portion has probes of its own, and they take most of the time of a look.
FEW = "callbacks.code_length.portions=[0.1,0.5]"
# Pictures are most of the rest: here those of the look before training, and those over training.
FEW_LOOKS = ("diagnostics.every_n_epochs=2", "diagnostics.pictures_every_n_epochs=8")


REASONING = ("experiment=reasoning", "data.numbers=4", "trainer.max_epochs=20", "logger=csv_only")
NO_PICTURES = "diagnostics.pictures_every_n_epochs=0"
VISION = (*SMALL, "logger=csv_only", "optim.lr=1e-3", NO_PICTURES)


@pytest.mark.parametrize(
    ("setting", "own", "looks"),
    [
        # Only this one draws pictures, which take most of the time.
        (REASONING, "reasoning", ["diagnostics.every_n_epochs=10"]),
        (VISION, "default", ["diagnostics.every_n_epochs=2"]),
        ((*VISION, "trainer.accumulate_grad_batches=2"), "default", ["diagnostics.every_n_epochs=2"]),
    ],
    ids=["reasoning", "vision", "accumulated"],
)
def test_weights_are_the_same_bit_for_bit_with_every_diagnostic(tmp_path: Path, setting, own, looks) -> None:
    plain = train_in(tmp_path / "plain", *setting, "softmax=norm_softmax")
    watched = train_in(
        tmp_path / "watched", *setting, "softmax=norm_softmax", f"callbacks=[{own},{LISTED}]", FEW, *looks
    )
    assert_same_weights(newest(watched), newest(plain))
    tables = list((watched / "diagnostics").glob("*.csv"))
    assert len(tables) == len(NAMES) - 1 and all(len(pd.read_csv(path)) > 0 for path in tables)


def test_weights_that_do_not_add_up_to_one_are_told_as_such(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    looks = ["callbacks=[reasoning,attention_entropy,attention_mass,logit_spread]", "diagnostics.every_n_epochs=2"]
    tables = {}
    for softmax in ("softmax", "softmax_plus_one", "signed"):
        run = train_in(tmp_path / softmax, *REASONING, *looks, "trainer.max_epochs=4", f"softmax={softmax}")
        names = ("attention_entropy", "attention_mass", "logit_spread")
        tables[softmax] = [pd.read_csv(run / "diagnostics" / f"{name}.csv") for name in names]
    bounds = "largest_weight_bound and smallest_weight_bound and critical_items and entropy_slope"
    told = capsys.readouterr().err
    assert (
        told.count(f"callbacks.logit_spread: {bounds} left empty: not defined under this softmax") == 1
    )  # three looks
    entropy, mass, spread = tables["softmax"]
    assert "sum" not in entropy and "nothing" not in set(mass["region"]) and spread.notna().all(axis=None)
    entropy, mass, spread = tables["softmax_plus_one"]
    null = mass[mass["region"] == "nothing"]
    assert null["mass"].to_numpy() == pytest.approx(1 - entropy["sum"].to_numpy(), abs=1e-5)
    assert (spread["largest_weight"] <= spread["largest_weight_bound"]).all()
    assert spread[["smallest_weight_bound", "entropy_slope"]].isna().all(axis=None)
    assert (spread["critical_items"] > 100).all()  # of 0.01
    entropy, _, spread = tables["signed"]
    assert entropy["share"].between(0, 1).all() and entropy["sum"].between(-1, 1).all()
    assert spread["largest_weight_bound"].isna().all() and spread["spread_bound"].notna().all()


@pytest.mark.usefixtures("traced_alone")
def test_a_compiled_model_trains_and_keeps_its_weights_bit_for_bit_with_every_diagnostic(tmp_path: Path) -> None:
    """As far as the compiler traces it: graphs, gradients, and what makes it trace anew."""
    # One layer and batches of one size: tracing takes its time by the number of operations and of shapes.
    setting = [*VISION, "model.depth=1", "data.validation_size=32", "softmax=norm_softmax_heat_treatment"]
    eager = train_in(tmp_path / "eager", *setting)
    compiled = train_in(tmp_path / "compiled", *setting, "compile=true")
    loss = [pd.read_csv(run / "metrics.csv")["train/loss"].dropna().iloc[-1] for run in (compiled, eager)]
    assert loss[0] == pytest.approx(loss[1], rel=1e-2)
    looks = [f"callbacks=[default,{LISTED}]", FEW, "diagnostics.every_n_epochs=2"]
    watched = train_in(tmp_path / "watched", *setting, "compile=true", *looks)
    assert_same_weights(newest(watched), newest(compiled))


@pytest.fixture(scope="module")
def vision(tmp_path_factory) -> Path:
    """A small vision run under all diagnostics."""
    watched = [*SMALL, f"callbacks=[default,{LISTED}]", FEW, *FEW_LOOKS, "logger=csv_only"]
    return only_run(made_once(tmp_path_factory, "vision", lambda folder: train_in(folder, *watched)))


@pytest.mark.parametrize("name", NAMES)
def test_tables_pictures_and_logs_of_a_vision_run(vision: Path, name: str) -> None:
    pictures = [*(vision / "pictures").glob(f"{name}*.png"), *(vision / "pictures" / name).glob("*.png")]
    assert pictures and all(path.stat().st_size > 1000 for path in pictures)
    if name == "attention_maps":
        assert len(list((vision / "diagnostics" / name).glob("*.npz"))) == 1
        return
    table = pd.read_csv(vision / "diagnostics" / f"{name}.csv")
    # Before training, and after every second of four epochs of four steps.
    assert sorted(table["step"].unique()) == [0, 8, 16]
    assert set(table["layer"]) == {0, 1}
    assert not table.isna().any().any()
    metrics = pd.read_csv(vision / "metrics.csv")
    assert any(column.startswith(f"{name}/") for column in metrics.columns)


def test_maps_look_only_where_a_picture_is_due() -> None:
    maps, entropy = (kind("unused", 2, pictures_every_n_epochs=4) for kind in (AttentionMaps, AttentionEntropy))
    assert [epoch for epoch in range(9) if maps.looks_at(epoch)] == [0, 4, 8]
    assert [epoch for epoch in range(9) if entropy.looks_at(epoch)] == [0, 2, 4, 6, 8]
    assert not AttentionMaps("unused", pictures_every_n_epochs=0).looks_at(0)


def test_regions_are_where_the_parts_stand(vision: Path) -> None:
    mass = pd.read_csv(vision / "diagnostics" / "attention_mass.csv")
    sizes = mass.groupby("region")["tokens"].first()
    # 16 patches and CLS; a tile has four patches.
    assert sizes.to_dict() == {
        "answer": 1,
        "indicator": 8,
        "indicator_1": 4,
        "indicator_2": 4,
        "sink": 1,
        "target": 8,
        "target_1": 4,
        "target_2": 4,
    }
    whole = mass[mass["region"].isin(["answer", "indicator", "target"])].groupby(["step", "layer", "head"])["mass"]
    assert whole.sum().to_numpy() == pytest.approx(1, abs=1e-5)


def test_probes_say_who_was_probed_for_what(vision: Path) -> None:
    table = pd.read_csv(vision / "diagnostics" / "linear_probes.csv")
    assert set(table["quantity"]) == {"z", "q", "k", "v", "attended", "residual"}
    assert set(table.loc[table["quantity"] == "z", "head"]) == {0, 1}
    assert set(table.loc[table["quantity"] == "residual", "head"]) == {-1}
    assert {"indicator_1", "target_location", "target_2", "label", "color_1"} <= set(table["target"])
    assert table.loc[table["target"] == "label", "chance"].unique() == pytest.approx(0.1)


def test_a_resumed_run_goes_on_with_its_tables(tmp_path: Path) -> None:
    # Stopped after two epochs by the step limit, then told to go on to the fourth.
    both = (*SMALL, "callbacks=[default,attention_entropy]", "logger=csv_only", "checkpoints.every_n_steps=4")
    run = train_in(tmp_path, *both)
    path = run / "diagnostics" / "attention_entropy.csv"
    whole = path.read_text()
    for checkpoint in sorted((run / "checkpoints").glob("last-*.ckpt"))[-1:]:
        checkpoint.unlink()
    set_status(run, "stopped")
    train_in(tmp_path, *both)
    assert path.read_text() == whole
    set_status(run, "stopped")
    for damaged in ("", "epoch,layer\n1,0\n"):
        path.write_text(damaged)
        with pytest.raises(LabError, match=r"attention_entropy\.csv"):
            train_in(tmp_path, *both)


@pytest.mark.parametrize("experiment", ["max_retrieval", "top_if_above", "seeds"])
def test_every_diagnostic_works_on_every_transformer(tmp_path: Path, experiment: str) -> None:
    setting = {
        "seeds": ["experiment=reasoning", "data.numbers=4", "trainer.max_epochs=2", "seeds=2"],
        "max_retrieval": [
            "experiment=max_retrieval",
            "data.epoch_steps=2",
            "data.validation_size=64",
            "trainer.max_epochs=2",
        ],
        "top_if_above": [
            *(o for o in SMALL if "digits" not in o and "experiment" not in o),
            "experiment=top_if_above",
            "trainer.max_epochs=2",
        ],
    }[experiment]
    looks = [
        "diagnostics.every_n_epochs=2",
        "diagnostics.pictures_every_n_epochs=4",  # of the look before training
        "trainer.check_val_every_n_epoch=1",
    ]
    # The items of max retrieval are no targets between which a z chooses.
    names = [name for name in NAMES if (name, experiment) != ("target_attention", "max_retrieval")]
    listed = f"callbacks=[{','.join(names)}]"
    train_with([*setting, *looks, listed, FEW, f"paths.runs={tmp_path}", "threads=1", "logger=csv_only"])
    tables = list(tmp_path.rglob("diagnostics/*.csv"))
    assert len(tables) == (2 if experiment == "seeds" else 1) * (len(names) - 1)
    for path in tables:
        assert len(pd.read_csv(path)) > 0
    if experiment == "seeds":
        one, other = (pd.read_csv(path) for path in tables if path.stem == "attention_entropy")
        assert not one.equals(other)


@pytest.mark.parametrize(
    "setting",
    [
        ("softmax=learnable_temperature",),
        ("softmax=adaptive_temperature", "softmax.gate=0.0"),
        ("trainer.precision=64-true",),
        ("trainer.precision=bf16-mixed",),
    ],
    ids=lambda setting: setting[0].split("=")[1],
)
def test_a_look_in_training_is_the_look_at_its_checkpoint(tmp_path: Path, setting: tuple[str, ...]) -> None:
    # The same rules, in evaluation mode, and the same scenes, whatever the precision of training.
    looks = [
        "diagnostics.every_n_epochs=4",
        "diagnostics.pictures_every_n_epochs=0",
        "trainer.check_val_every_n_epoch=1",
    ]
    names = "attention_maps,attention_scores,code_length,linear_probes,logit_spread,temperature_in_use"
    setting = (*setting, FEW, "experiment=reasoning", "data.numbers=4", "trainer.max_epochs=4", "logger=csv_only")
    run = train_in(tmp_path, *setting, *looks, f"callbacks=[{names}]")
    out = inspect(run, [f"callbacks=[{names}]"], out=tmp_path / "look")
    for name, columns in (
        ("logit_spread", ["spread", "spread_bound"]),
        ("temperature_in_use", ["temperature", "spread"]),
        ("linear_probes", ["accuracy"]),
    ):
        trained = pd.read_csv(run / "diagnostics" / f"{name}.csv").query("step == 4")
        looked = pd.read_csv(out / "diagnostics" / f"{name}.csv")
        # Half precision rounds what the probes are given.
        near = 0.1 if "trainer.precision=bf16-mixed" in setting else 1e-3
        assert trained[columns].to_numpy() == pytest.approx(looked[columns].to_numpy(), rel=near, abs=near)
    spread = pd.read_csv(out / "diagnostics" / "logit_spread.csv")
    assert (spread["spread"] <= spread["spread_bound"] * 1.001).all()


def test_two_processes_look_once_and_do_not_wait_for_ever(tmp_path: Path) -> None:
    # Pictures of looks by one diagnostic only: drawing them is most of the time that looking takes.
    looks = ["diagnostics.pictures_every_n_epochs=0", "callbacks.attention_entropy.pictures_every_n_epochs=1"]
    looks += ["diagnostics.every_n_epochs=2", FEW]
    overrides = [*SMALL, "trainer.max_epochs=2", f"callbacks=[default,{LISTED}]", *looks, "logger=csv_only"]
    torchrun(*overrides, "threads=1", folder=tmp_path)
    run = only_run(tmp_path)
    assert len(list((run / "pictures" / "attention_entropy").glob("*.png"))) == 2
    table = pd.read_csv(run / "diagnostics" / "attention_entropy.csv")
    assert len(table) == 2 * 2 * 2


def test_a_model_without_attention_is_refused(tmp_path: Path) -> None:
    small = [override for override in SMALL if not override.startswith("model.")]
    with pytest.raises(LabError, match="attention_entropy looks into attention, which ResNet9 does not have"):
        train_in(tmp_path, *small, "model=resnet9", "callbacks=[default,attention_entropy]")


def test_a_diagnostic_is_named_by_its_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    again = "+callbacks.again={_target_: lab.callbacks.diagnostics.temperature_in_use.TemperatureInUse, folder: '.'}"
    with pytest.raises(LabError, match=r"leave out one of callbacks\.(temperature_in_use|again), callbacks"):
        train_in(tmp_path, *SMALL, "callbacks=[default,temperature_in_use]", again)
    made = TemperatureInUse(str(tmp_path))
    assert made.place == "callbacks.temperature_in_use"
    made.key = "again"
    made.tell_once("told")
    with made.telling_faults():
        _ = {}["gone"]
    first, second = capsys.readouterr().err.splitlines()[-2:]
    assert first == "callbacks.again: told" and second.startswith("callbacks.again draws no picture over training")


def test_inspect_looks_at_a_checkpoint_and_keeps_what_is_there(vision: Path, tmp_path: Path) -> None:
    full = ["callbacks.linear_probes.full=[z]", "callbacks.code_length.full=[residual]"]
    out = inspect(vision, [f"callbacks=[{LISTED}]", *full], out=tmp_path / "look")
    looked = pd.read_csv(out / "diagnostics" / "attention_entropy.csv")
    trained = pd.read_csv(vision / "diagnostics" / "attention_entropy.csv").query("step == 16")
    assert looked["entropy"].to_numpy() == pytest.approx(trained["entropy"].to_numpy(), rel=1e-4)
    probes = pd.read_csv(out / "diagnostics" / "linear_probes.csv")
    assert set(probes["tokens"]) == {"answer", "mean", "full"}
    lengths = pd.read_csv(out / "diagnostics" / "code_length.csv").query("tokens == 'full'")
    assert set(lengths["quantity"]) == {"residual"} and len(lengths) == 2 * lengths["target"].nunique()
    with pytest.raises(LabError, match="force=true"):
        inspect(vision, ["callbacks=[attention_entropy]"], out=out)
    inspect(vision, ["callbacks=[attention_entropy]"], out=out, force=True, softmax="norm_softmax")
    other = pd.read_csv(out / "diagnostics" / "attention_entropy.csv")
    assert other["entropy"].to_numpy() != pytest.approx(looked["entropy"].to_numpy(), rel=1e-4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["diagnostics=[attention_maps]"], "run= (or model=) and diagnostics= are needed"),
        (["run=nowhere", "diagnostics=[attention_maps]"], "holds no run"),
        (
            ["run=RUN", "diagnostics=[attention_map]"],
            "diagnostics=attention_map does not exist; did you mean 'attention_m",
        ),
        (["run=RUN", "diagnostics=[default]"], "eureka watches training and cannot look afterwards: leave it out"),
        (
            ["run=RUN", "diagnostics=[attention_maps]", "attention_maps.scene=3"],
            "attention_maps has no 'scene'; did you",
        ),
        (
            ["run=RUN", "diagnostics=[linear_probes]", "linear_probes.quantities=[x]"],
            "[0]='x' is wrong: it must be 'z', 'q'",
        ),
        (["run=RUN", "diagnostics=[attention_maps]", "force=maybe"], "force must be true or false"),
        (
            ["run=RUN", "diagnostics=[code_length]", "code_length.tokens=[cls]"],
            "it must be 'answer' or 'mean'",
        ),
        (["run=RUN", "diagnostics=[linear_probes]", "linear_probes.targets=[mood]", "out=OUT"], "no mood to probe for"),
        (["run=RUN", "diagnostics=[linear_probes]", "linear_probes.full_scenes=9999"], "between 1 and scenes=2000"),
        (
            ["run=RUN", "diagnostics=[linear_probes]", "linear_probes.scenes=1", "out=OUT"],
            "error: callbacks.linear_probes: there is nothing to probe for",
        ),
        (["run=RUN", "diagnostics=[learning_coefficient]", "learning_coefficient.samples=1"], "it must be at least 2"),
        (["run=RUN", "diagnostics=[attention_maps]", "device=abacus"], "device=abacus cannot be used"),
        (["run=RUN", "diagnostics=[attention_maps]", "data.batch_sice=3"], "did you mean 'batch_size'"),
        (["run=RUN", "diagnostics=[attention_maps]", "data.tile_size=4"], "does not fit data of image_size=8"),
        (["run=RUN", "diagnostics=[attention_entropy]", "out=RUN"], "force=true"),
        (["nonsense"], "is no option"),
    ],
)
def test_wrong_looks_are_answered_in_one_sentence(
    vision: Path,
    tmp_path: Path,
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    typed = [argument.replace("RUN", str(vision)).replace("OUT", str(tmp_path)) for argument in arguments]
    monkeypatch.setattr(sys, "argv", ["lab.inspect", *typed])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    told = capsys.readouterr().err
    assert words in told and "Traceback" not in told


def test_a_look_reads_its_images_once(vision: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[str, str]] = []
    load = DrawnDigits.load

    def counted(self: DrawnDigits, split):
        read.append((self.kind, split))
        return load(self, split)

    monkeypatch.setattr(DrawnDigits, "load", counted)
    inspect(vision, ["callbacks=[attention_entropy]"], out=tmp_path)
    assert sorted(read) == [(kind, split) for kind in ("digits", "garments") for split in ("test", "train")]


def test_a_look_may_ask_for_more_scenes_than_the_run_validates_on(
    vision: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ["callbacks=[attention_entropy]"]
    inspect(vision, chosen, out=tmp_path / "few")
    assert "attention_entropy asks for 256 scenes, but the validation set has 40" in capsys.readouterr().err
    inspect(vision, chosen, out=tmp_path / "many", data_options={"data.validation_size": 256})
    assert "asks for" not in capsys.readouterr().err


def test_what_is_kept_of_a_chunk_holds_on_to_nothing_else(vision_data) -> None:
    # A view of one token would keep all of them: 11 GiB for the compact ViT's 2,000 scenes.
    model = CompactViT(**vision_data.model_arguments(), patch_size=14, depth=2, heads=2, head_dim=8)
    kept: list[torch.Tensor] = []

    class Probes(LinearProbes):
        def see(self, chunk):
            seen = super().see(chunk)
            kept.extend(seen[0].values())
            return seen

    class Scores(AttentionScores):
        def see(self, chunk):
            counts, samples = super().see(chunk)
            kept.extend([counts, *samples])
            return counts, samples

    watching = [Probes("unused", scenes=40, full=["z"]), Scores("unused", scenes=40)]
    observe(model, vision_data, watching, torch.device("cpu"))
    assert len(kept) > 20
    for tensor in kept:
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def test_means_do_not_depend_on_chunks_and_a_scene_of_no_numbers_is_left_out(vision_data, monkeypatch) -> None:
    model = CompactViT(**vision_data.model_arguments(), patch_size=8, depth=2, heads=2, head_dim=8)
    kinds = (AttentionEntropy, AttentionGradients, AttentionMass, AttentionScores, LogitSpread, SinkValues)
    watching = [kind("unused", scenes=9) for kind in (*kinds, SoftmaxJacobian, TemperatureInUse)]
    whole = [pd.DataFrame(found.rows) for found in observe(model, vision_data, watching)]
    monkeypatch.setattr("lab.observation.observe._CHUNK_ELEMENTS", 1)
    for one, found in zip(whole, observe(model, vision_data, watching), strict=True):
        pd.testing.assert_frame_equal(one, pd.DataFrame(found.rows), rtol=1e-5)

    transferred = vision_data.on_after_batch_transfer

    def with_a_gap(batch: Any, loader: int) -> Any:
        batch = transferred(batch, loader)
        return {**batch, "x": batch["x"].index_fill(0, torch.tensor([3]), math.nan)}

    monkeypatch.setattr(vision_data, "on_after_batch_transfer", with_a_gap)
    by_one = [pd.DataFrame(found.rows) for found in observe(model, vision_data, watching)]
    monkeypatch.undo()
    monkeypatch.setattr(vision_data, "on_after_batch_transfer", with_a_gap)
    for one, found in zip(by_one, observe(model, vision_data, watching), strict=True):
        assert one.notna().all(axis=None)
        pd.testing.assert_frame_equal(one, pd.DataFrame(found.rows), rtol=1e-5)


def test_uniform_attention_fills_one_bin() -> None:
    # A float near 1/n may lie on either side of it.
    around = [nearby for n in range(2, 60) for nearby in (1 / n - 1e-5, 1 / n + 1e-5)]
    weights = torch.tensor(around).reshape(-1, 2, 1, 1)
    one: Any = SimpleNamespace(shares=[weights], layers=[{"logits": torch.zeros(weights.shape)}])
    scores = AttentionScores("unused")
    (row,) = scores.conclude([scores.see(one)]).rows
    counts = [count for name, count in row.items() if name != "layer"]
    assert len(counts) == 25 and sum(counts) == len(around) and all(count % 2 == 0 for count in counts)


def rare_seen(scenes: int) -> list:
    """What probes saw of two layers: a label that every fourth of the scenes has."""
    found = {
        (layer, "residual", tokens): torch.randn(scenes, 1, 5) for layer in range(2) for tokens in ("answer", "mean")
    }
    return [(found, {"rare": (torch.arange(scenes) % 4 == 3).long()}, torch.device("cpu"))]


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        # 20 of 80 held-out scenes are of the rare class, and 60 of the other.
        (LinearProbes, {"chance": 50.0, "majority": 75.0}),
        (CodeLength, {"uniform": 320.0, "marginal": 320 * (0.25 * 2 + 0.75 * math.log2(4 / 3))}),
    ],
)
def test_who_knows_nothing_is_drawn_in_every_picture_of_probes(kind: type[Probe], lines: dict[str, float]) -> None:
    one = kind("unused", scenes=320)
    findings = one.conclude(rare_seen(320))
    assert set(findings.figures) == {"answer", "mean"}
    table = pd.concat([pd.DataFrame(findings.rows).assign(step=step) for step in (0, 4)])
    pictures = [*(make() for make in findings.figures.values()), one.history(table, None)]
    for picture in pictures:
        (panel,) = picture.axes
        drawn = {line.get_label(): line.get_ydata() for line in panel.lines}
        for name, value in lines.items():
            assert list(drawn[name]) == pytest.approx([value, value])
            assert panel.get_ylim()[0] <= value <= panel.get_ylim()[1]
        legend = {text.get_text() for text in picture.legends[0].get_texts()}
        assert legend >= set(lines)


@pytest.mark.parametrize(
    ("kind", "quantities", "shown", "label"),
    [
        (LinearProbes, ["z", "residual"], "z", "accuracy of z in %"),
        (LinearProbes, ["attended", "residual"], "residual", "accuracy of residual in %"),
        (LinearProbes, ["residual", "q"], "q", "accuracy of q in %"),
        (CodeLength, ["attended", "residual"], "residual", "code-length in bits"),
    ],
)
def test_one_quantity_at_one_kind_of_tokens_is_drawn_over_training(
    kind: type[Probe], quantities: list[str], shown: str, label: str
) -> None:
    # Whole representations come last, and of another quantity.
    kinds = [(quantity, tokens) for quantity in quantities for tokens in ("answer", "mean")] + [("k", "full")]
    scenes = [torch.randn(320, 1, 5) for _ in kinds]
    found = {(0, quantity, tokens): one for (quantity, tokens), one in zip(kinds, scenes, strict=True)}
    one = kind("unused", scenes=320, quantities=quantities, full=["k"])
    findings = one.conclude([(found, {"even": torch.arange(320) % 2}, torch.device("cpu"))])
    table = pd.DataFrame(findings.rows)
    rows = one.shown(table)
    assert (set(rows["quantity"]), set(rows["tokens"])) == ({shown}, {"answer"})
    assert findings.scalars == {"even/layer_0": rows[one.measured].mean()}
    assert one.history(table.assign(step=0), None).axes[0].get_ylabel() == label
    whole = table[table["tokens"] == "full"]
    assert list(one.shown(whole)["quantity"]) == ["k"]  # nothing else is there


def test_features_are_held_once_while_probes_are_fitted() -> None:
    scenes, heads, widths = 40, 3, (37, 41)
    held: list[int] = []

    class Probes(LinearProbes):
        def measure(self, features_PND, targets):
            there = [o for o in gc.get_objects() if type(o) is torch.Tensor and o.shape[-1:].numel() in widths]
            held.append(sum({o.untyped_storage().data_ptr(): o.untyped_storage().nbytes() for o in there}.values()))
            return super().measure(features_PND, targets)

    places = [(layer, "z", tokens) for layer in range(2) for tokens in ("answer", "mean")]
    places += [(2, "residual", "answer")]
    chunks = []
    for _ in range(2):
        found = {place: torch.randn(scenes // 2, heads, widths[place[1] == "residual"]) for place in places}
        chunks.append((found, {"label": torch.arange(scenes // 2) % 2}, torch.device("cpu")))
    del found
    Probes("unused", scenes=scenes).conclude(chunks)
    z, residual = 4 * heads * scenes * widths[0] * 4, heads * scenes * widths[1] * 4
    assert held == [z + residual, residual]


@pytest.mark.parametrize("quantities", ["[v]", "[z,v]"])
def test_values_can_be_probed_alone(vision: Path, tmp_path: Path, quantities: str) -> None:
    out = inspect(
        vision, ["callbacks=[linear_probes]", f"callbacks.linear_probes.quantities={quantities}"], out=tmp_path
    )
    table = pd.read_csv(out / "diagnostics" / "linear_probes.csv")
    assert set(table["quantity"]) == set(quantities.strip("[]").split(","))


def test_names_with_commas_are_read_as_they_are() -> None:
    run = "runs/reasoning/softmax,callbacks=[a,b]/seed=0"
    assert look_arguments([f"run={run}", "diagnostics=[a,b]"])["run"] == Path(run)


def test_before_training_the_temperature_is_that_of_the_first_epoch(tmp_path: Path) -> None:
    looks = ["callbacks=[reasoning,temperature_in_use]", "diagnostics.every_n_epochs=1", NO_PICTURES]
    run = train_in(tmp_path, *REASONING, *looks, "trainer.max_epochs=8", "softmax=heat_treatment")
    table = pd.read_csv(run / "diagnostics" / "temperature_in_use.csv").groupby("epoch")["temperature"].mean()
    assert table[0] == pytest.approx(1 / 3) and table[1] == pytest.approx(1 / 3) and table[2] > 0.35


def test_a_size_that_no_weight_survives_is_told_only_where_more_keys_change_no_temperature(tmp_path: Path) -> None:
    """Theorem 2.2 holds for a bounded spread of the logits, and for keys that the row sees."""
    told = {}
    for softmax in ("softmax", "learnable_temperature", "norm_softmax", "log_length", "local"):
        looks = ["callbacks=[reasoning,logit_spread]", "trainer.max_epochs=1", f"softmax={softmax}"]
        run = train_in(tmp_path / softmax, *REASONING, *looks)
        table = pd.read_csv(run / "diagnostics" / "logit_spread.csv")
        assert table["largest_weight_bound"].notna().all()
        told[softmax] = bool(table["critical_items"].notna().all())
    assert [name for name, given in told.items() if given] == ["softmax", "learnable_temperature"]


def test_a_rule_of_ones_own_is_taken_to_read_keys_until_it_says_otherwise() -> None:
    class Own(Fixed):
        def inverse_temperature(self, q_BHND, k_BHMD, mask=None):
            return 1 / k_BHMD.std()

    class Named(Fixed):
        pass

    assert Own.reads_keys and not Fixed.reads_keys and not Named.reads_keys


def test_the_way_to_the_moment_takes_no_longer_than_the_whole_training(tmp_path: Path) -> None:
    """The first look, before training, counts in both or in neither."""
    looks = ["callbacks=[reasoning,attention_maps]", "trainer.check_val_every_n_epoch=1", "trainer.max_epochs=1"]
    summary = summary_of(train_in(tmp_path, *REASONING, *looks, "callbacks.eureka.threshold=0.001"))
    assert 0 < summary["eureka"]["wall_seconds"] <= summary["wall_seconds"]
