"""The lab as a library within somebody else's program: it answers in one sentence, and leaves the program as it was."""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import sys
import tomllib
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import timm
import torch
from conftest import ROOT, newest, only_run
from hydra import compose, initialize
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import OmegaConf

import lab
from lab import console
from lab.attention.functional import attend
from lab.attention.normalisers.plus_one import PlusOne
from lab.attention.rules.fixed import Fixed
from lab.attention.rules.learnable import LearnableTemperature
from lab.callbacks.diagnostics.attention_entropy import AttentionEntropy
from lab.callbacks.diagnostics.gradient_norms import GradientNorms
from lab.callbacks.watch import Watch
from lab.console import LabError, end_imports_quietly
from lab.datasets.contract import check_data
from lab.models.set_attention import SetAttention
from lab.report.gather import gather
from lab.report.make import report
from lab.runs.spec import RunSpec
from lab.runs.summary import Summary, load_summary
from lab.training import start as starting
from lab.training.inspection import inspect
from lab.training.load import read_trained


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ("experiment=reasoning", "lab.run takes a list of overrides"),
        (["experiment=reasoning", "paths.run=mine"], "paths.run cannot be set, as it follows from what is run"),
        ({"experiment": "reasoning"}, "lab.run takes a list of overrides"),
        (None, "lab.run takes a list of overrides"),
        (["experiment=reasoning", 3], "an override is a text, as in 'seed=3', got 3"),
        (["-m", "experiment=reasoning"], "-m is for the command line only: from Python, sweep with a loop"),
        (
            ["experiment=reasoning", "seed=0,1"],
            "^seed=0,1 asks for several runs, and this is one: loop over lab.run, or train seeds",
        ),
        (["--config-dir=conf"], "--config-dir=conf is for the command line only"),
    ],
)
def test_what_is_no_list_of_overrides_is_refused(overrides: Any, told: str) -> None:
    with pytest.raises(LabError, match=told):
        lab.run(overrides)


def test_a_sentence_stands_without_the_errors_of_libraries(tmp_path: Path, monkeypatch) -> None:
    """In a notebook they are 200 lines above it; those of the user's own code, and what is asked for, are shown."""
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    wrong = ["experiment=reasoning", "softmax=norm_softmx"], ["seed=[1"], ["optim.lr=abc"]
    for typed in wrong:
        with pytest.raises(LabError) as told:
            lab.run(typed)
        assert told.value.__cause__ is None and told.value.__suppress_context__
    (tmp_path / "own_broken.py").write_text("import math\n\nmath.sqrt(-1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LabError, match=r"own_broken\.py, line 3") as own:
        lab.run(["experiment=reasoning", "model._target_=own_broken.Model"])
    assert own.value.__cause__ is not None
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(LabError) as full:
        lab.run(wrong[0])
    assert isinstance(full.value.__cause__, HydraException)


def test_a_run_leaves_the_process_as_it_was(tmp_path: Path, one_thread: None, monkeypatch) -> None:
    """And it trains in float32, as on the command line."""
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    torch.set_num_threads(2)
    logger = logging.getLogger("lightning.pytorch")
    monkeypatch.setattr(logger, "level", logging.INFO)
    filters = list(warnings.filters)
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    # A module of the user, imported by the run, has a filter of its own, which stays.
    own = "from lab.attention.rules.fixed import Fixed\nimport warnings\nwarnings.filterwarnings('ignore', 'of mine')\n"
    (tmp_path / "my_filter.py").write_text(own)
    monkeypatch.syspath_prepend(tmp_path)
    typed = ["experiment=reasoning_small", "data.numbers=4", "trainer.max_epochs=1", "threads=1"]
    typed += ["softmax._target_=my_filter.Fixed"]
    torch.set_default_dtype(torch.float64)
    try:
        lab.run([*typed, f"paths.runs={tmp_path}"])
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == states
    weights = newest(only_run(tmp_path))["state_dict"].values()
    assert {weight.dtype for weight in weights if weight.is_floating_point()} == {torch.float32}
    assert torch.get_num_threads() == 2 and "PL_GLOBAL_SEED" not in os.environ
    assert logger.level == logging.INFO and warnings.filters[1:] == filters
    assert warnings.filters[0][1].pattern == "of mine"


def may_train() -> bool:
    """Tells whether no other thread of this process trains."""
    with starting._alone():
        return True


def test_one_thread_at_a_time_trains(monkeypatch) -> None:
    """Two would draw from the same random numbers, and the first that ends would set them back for the other."""
    trains, may_end = Event(), Event()

    def training(spec: RunSpec) -> list[Summary]:
        trains.set()
        assert may_end.wait(60)
        return []

    monkeypatch.setattr(starting, "start", training)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(lab.run, ["experiment=reasoning"])
        assert trains.wait(60)
        try:
            with pytest.raises(LabError, match="another thread trains with lab"):
                lab.run(["experiment=reasoning", "seed=1"])
            if hasattr(os, "fork"):  # a process of its own has no thread that trains
                with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as processes:
                    assert processes.submit(may_train).result(60)
        finally:
            may_end.set()
        assert first.result() == lab.run(["experiment=reasoning", "seed=1"]) == []


def test_softmaxes_are_composed_within_a_program_that_hydra_runs() -> None:
    with initialize(version_base="1.3", config_path=None):
        outer = GlobalHydra.instance().hydra
        model = lab.replace_softmax(timm.create_model("vit_tiny_patch16_224", depth=1), "norm_softmax", statistic="std")
        with pytest.raises(LabError):
            lab.replace_softmax(model, "norm_softmax", nothing=1)
        assert GlobalHydra.instance().hydra is outer
        assert compose(overrides=["+mine=3"]).mine == 3
    assert GlobalHydra.instance().hydra is None
    assert not OmegaConf.has_resolver("home"), "a name that another program may have taken"


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        (["python", "-m", "lab.train", "experiment=reasoning"], True),
        (["python", "-u", "-m", "lab.report"], True),
        (["python", "/venv/bin/eureka-train", "seed=3"], True),
        (["python", "/home/me/eureka-study/train.py"], False),
        (["python", "train.py", "--out", "/data/eureka-runs"], False),
        (["python", "mine.py", "-m", "lab.train"], False),
        (["python"], False),
    ],
)
def test_ctrl_c_is_the_lab_s_in_its_own_commands_alone(words: list[str], ours: bool, monkeypatch) -> None:
    before = sys.excepthook
    monkeypatch.setattr(sys, "excepthook", before)
    monkeypatch.setattr(sys, "orig_argv", words)
    end_imports_quietly()
    assert (sys.excepthook is not before) == ours


def test_the_lab_knows_the_names_of_its_commands() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"].keys() == console._COMMANDS


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"rule": "softmax"}, "'softmax' is not a temperature rule: give one, as in Fixed"),
        ({"rule": Fixed}, "is not a temperature rule"),
        ({"rule": LearnableTemperature(4, 4)}, r"LearnableTemperature was made for 4 heads, .* are \[1, 2, 3, 4\]"),
        ({"normaliser": PlusOne(8, 4)}, "PlusOne was made for 8 heads"),
        (
            {"q_BHND": torch.zeros(2, 3, 4)},
            r"queries are \[batch, heads, tokens, dimension of a head\], got \[2, 3, 4\]",
        ),
        ({"normaliser": "plus_one"}, "'plus_one' is not a normaliser: give one, as in PlusOne"),
        ({"mask": np.ones((3, 3), bool)}, "a mask of attention is a tensor of bool or Causal; got ndarray"),
        ({"mask": torch.ones(3, 3)}, "a mask of attention is bool"),
        ({"dropout": -0.5}, "dropout is a number from 0 to less than 1, got -0.5"),
    ],
)
def test_attention_of_wrong_parts_is_refused(options: dict[str, Any], told: str) -> None:
    x = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ValueError, match=told):
        attend(**{"q_BHND": x, "k_BHMD": x, "v_BHMD": x, "rule": Fixed(2, 4), **options})


def test_a_look_at_a_model_of_two_inputs() -> None:
    batch = (torch.rand(3, 8, 11), torch.rand(3, 1))
    (seen,) = lab.look(SetAttention(), batch, [AttentionEntropy("look")])
    assert seen.rows and 0.9 < seen.rows[0]["share"] <= 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_look_at_a_model_of_another_precision_than_its_inputs(dtype: torch.dtype) -> None:
    model, batch = SetAttention(), (torch.rand(3, 8, 11), torch.rand(3, 1))
    (expected,) = lab.look(model, batch, [AttentionEntropy("look")])
    (seen,) = lab.look(model.to(dtype), batch, [AttentionEntropy("look")])
    assert seen.rows[0]["share"] == pytest.approx(expected.rows[0]["share"], rel=0.01)


INSPECTED = partial(inspect, "nowhere", ["callbacks=[attention_entropy]"])


@pytest.mark.parametrize(
    ("call", "given", "told"),
    [
        (report, ([],), r"a report needs folders of runs, as in report\(\['runs/main_task'\]\), got \[\]"),
        (report, (None,), "a report needs folders of runs, .* got None"),
        (report, ("nowhere",), "^nowhere is no folder"),
        (gather, ("nowhere",), "^nowhere is no folder: name one that holds runs"),
        (gather, (ROOT / "README.md",), "README.md is no folder: name one that holds runs"),
        (gather, (ROOT / "docs", 0), "processes=0 is wrong: give a whole number, at least 1"),
        (partial(report, processes="4"), (ROOT / "docs",), "processes='4' is wrong"),
        (lab.load_runs, ("",), "'' is no path: give one, as in load_runs"),
        (read_trained, (None,), "None is no path: give one, as in read_trained"),
        (read_trained, (5,), "5 is no path"),
        (load_summary, (None,), "None is no path: give one, as in load_summary"),
        (load_summary, ("nowhere",), "^nowhere holds no run: there is no such folder"),
        (inspect, ("nowhere", None), "no diagnostics: give a list, such as .* instead of None"),
        (inspect, ("nowhere", [5]), r"no diagnostics: give a list, such as .* instead of \[5\]"),
        (inspect, (None, ["callbacks=[attention_entropy]"]), "None is no path: give one, as in inspect"),
        (partial(INSPECTED, device=None), (), "device=None is no device: give its name, as 'cpu' or 'cuda'"),
        (partial(INSPECTED, data_options=["a"]), (), r"data_options are a dict, as .*, got \['a'\]"),
        (check_data, (None,), "check_data takes a data module, .* got None"),
        (lab.observe, (None, None, [AttentionEntropy("look")]), "None is not a model: give a torch.nn.Module"),
    ],
)
def test_what_is_no_folder_run_or_model_is_refused(call: Callable[..., object], given: tuple[Any], told: str) -> None:
    with pytest.raises(LabError, match=told):
        call(*given)


@pytest.mark.parametrize("x", [torch.rand(2, 8), torch.full((2, 8), 99)])
def test_a_look_at_what_is_no_input_of_the_model_says_so(x: torch.Tensor) -> None:
    layers = torch.nn.Embedding(10, 8), torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)
    model = lab.replace_softmax(torch.nn.Sequential(*layers))
    with pytest.raises(LabError, match=r"^Sequential fails on x: "):
        lab.look(model, x, [AttentionEntropy("look")])


def test_names_and_classes_in_the_place_of_lists_and_observers_are_told(tmp_path: Path) -> None:
    model = lab.replace_softmax(timm.create_model("vit_tiny_patch16_224", depth=1))
    x = torch.zeros(1, 3, 224, 224)
    with pytest.raises(LabError, match="observers are a list"):
        lab.look(model, x, AttentionEntropy("look"))
    with pytest.raises(LabError, match="AttentionEntropy is a class: give an observer"):
        lab.look(model, x, [AttentionEntropy])  # type: ignore[list-item]
    text = AttentionEntropy("look")
    text.reads = "logits"  # type: ignore[assignment]
    with pytest.raises(LabError, match=r"AttentionEntropy.reads is a text: write a tuple, \('logits',\)"):
        lab.look(model, x, [text])
    text.reads = ("weight",)  # type: ignore[assignment]
    with pytest.raises(LabError, match=r"AttentionEntropy.reads names weight, which the recorder does not know; valid"):
        lab.look(model, x, [text])
    text.reads = ("logits",)  # type: ignore[assignment]
    with pytest.raises(
        LabError, match=r"see uses 'weights', which it does not read: .* reads = \('logits', 'weights'\)"
    ):
        lab.look(model, x, [text])
    with pytest.raises(LabError, match="'attention_entropy' is a name: give an observer"):
        lab.observe(model, None, ["attention_entropy"])  # type: ignore[arg-type, list-item]
    with pytest.raises(LabError, match="observers are a list"):
        lab.observe(model, None, AttentionEntropy("look"))  # type: ignore[arg-type]
    with pytest.raises(LabError, match="GradientNorms does not look at scenes"):
        lab.observe(model, None, [GradientNorms("look")])  # type: ignore[arg-type, list-item]
    with pytest.raises(LabError, match="observers are a list"):
        Watch(model, x, AttentionEntropy("look"))  # type: ignore[arg-type]
    for every in (0, 1.5, -1):
        with pytest.raises(LabError, match=r"every_n_steps=.* must be a whole number of at least 1"):
            Watch(model, x, [AttentionEntropy("look")], every_n_steps=every)  # type: ignore[arg-type]
    with pytest.raises(LabError, match="Linear has no attention of the lab"):
        Watch(torch.nn.Linear(2, 2), x, [GradientNorms(str(tmp_path))]).at(0, 10)
    for wrong in (lab.replace_softmax, lab.restore_softmax):
        with pytest.raises(LabError, match="'gpt2' is not a model"):
            wrong("gpt2")  # type: ignore[type-var]

    class Lists(AttentionEntropy):
        def conclude(self, seen: list[Any]) -> Any:
            return []

    with pytest.raises(LabError, match=r"Lists\.conclude must return Findings, and returned list"):
        lab.look(model, x, [Lists("look")])
    with pytest.raises(LabError, match="trust=no_such_module: there is no such module"):
        read_trained(tmp_path, trust="no_such_module")
    with pytest.raises(LabError, match="no diagnostics: give a list, such as"):
        inspect(tmp_path, "attention_entropy")
    with pytest.raises(LabError, match="unexpected keyword argument 'foo'"):
        lab.replace_softmax(model, partial(Fixed, foo=2.0))
    with pytest.raises(LabError, match="for an option of another normaliser, name that one, too"):
        lab.replace_softmax(model, "softmax", normaliser={"bias": "learned"})
