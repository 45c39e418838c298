"""A config.yaml that somebody else wrote is data: nothing of it runs, and each fault is a sentence."""

from __future__ import annotations

import os
import shutil
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import train_in
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from lab.console import LabError
from lab.files import DamagedFile
from lab.inspect import main
from lab.runs.folder import Run
from lab.runs.stored_config import read_config
from lab.training.load import read_trained

TOUCH = {"_target_": "os.mkdir", "path": "touched"}
# Nine lists of nine of the one before: a billion in all.
BOMB = "a: &a [x]\n" + "".join(f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in pairwise("abcdefghij"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sets = ("experiment=reasoning", "data.numbers=4", "trainer.max_epochs=2", "logger=csv_only")
    return train_in(tmp_path_factory.mktemp("stored"), *sets)


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(trained, tmp_path / "run"))


def change(run: Path, part: str, **changes: Any) -> None:
    config = read_config(run)
    config[part] = {**({} if "_target_" in changes else config[part]), **changes}
    (run / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))


@pytest.mark.parametrize(
    ("part", "node", "named"),
    [
        ("data", {"_target_": "pandas.read_pickle", "filepath_or_buffer": "x"}, "data._target_=pandas.read_pickle"),
        ("data", {"_target_": "torch.load", "f": "x", "weights_only": False}, "data._target_=torch.load"),
        ("data", {"_target_": "lab.files.write_text", "path": "touched", "text": ""}, "lab.files.write_text"),
        ("data", {"_target_": "lab.files.os.mkdir", "path": "touched"}, "lab.files.os.mkdir"),
        ("data", {"_target_": "builtins.eval", "_args_": ["open('touched', 'w')"]}, "builtins.eval"),
        ("data", {"_target_": ["os.mkdir"], "path": "touched"}, r"_target_=\['os.mkdir'\]"),
        ("data", {"_target_": "lab.attention.rules.fixed.Fixed", "heads": 1, "head_dim": 1}, "rules.fixed.Fixed"),
        ("data", {"numbers": TOUCH}, "data.numbers._target_=os.mkdir"),
        ("data", {"numbers": TOUCH, "_recursive_": False}, "data.numbers._target_=os.mkdir"),
        (
            "model",
            {"_target_": "lab.models.reasoner.Reasoner", "_args_": [TOUCH]},
            r"_args_\[0\]._target_=os.mkdir",
        ),
        ("model", {"_target_": "timm.create_model", "model_name": "vit_small", "checkpoint_path": "x"}, "timm.create"),
        ("model", {"_target_": "lab.models.compact_vit.compact_vit", "pretrained": True}, "compact_vit.compact_vit"),
        ("trainer", {"accumulate_grad_batches": 0}, "trainer.accumulate_grad_batches=0 is wrong: it must be"),
        ("trainer", {"precision": [1]}, "trainer.precision"),
        ("model", {"pretrained": True}, "model.pretrained is not an option of Reasoner"),
        ("softmax", {"_target_": "hydra.utils.get_method", "path": "os.mkdir"}, "hydra.utils.get_method"),
        ("optim", {"options": {"eps": TOUCH}}, "optim.options.eps._target_=os.mkdir"),
        ("optim", {"_partial_": True}, "is no optimiser"),
        ("data", {"_partial_": True}, "is no data"),
        ("trainer", {"precision": TOUCH}, "trainer.precision._target_=os.mkdir"),
        ("data", {"seed": "${oc.env:HOME}"}, r"data.seed=\$\{oc.env:HOME\} refers to something else"),
        ("norm_softmax", {"tau": "${oc.env:HOME}"}, r"norm_softmax.tau=\$\{oc.env:HOME\} refers"),
        ("data", {"_target_": "lab.datasets.vision.VisionData"}, "data.task is missing: VisionData needs it"),
    ],
)
def test_what_a_config_names_is_not_made(
    run: Path, part: str, node: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    change(run, part, **node)
    before = sorted(run.parent.rglob("*"))
    monkeypatch.setattr(sys, "argv", ["lab.inspect", f"run={run}", "diagnostics=[attention_entropy]"])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr().err
    assert ended.value.code == 1 and told.count("\n") == 1
    with pytest.raises(LabError, match=named):
        raise LabError(told)
    assert sorted(run.parent.rglob("*")) == before


def test_what_other_parts_name_is_not_even_imported(run: Path) -> None:
    (run.parent / "my_trap.py").write_text("raise SystemExit('sprung')")
    for part in ("callbacks", "logger", "trainer", "intervention"):
        change(run, part, mine={"_target_": "my_trap.f"})
    assert read_trained(run).model() is not None


def test_a_module_that_the_user_names_is_trusted_and_what_it_imports_is_not(run: Path, monkeypatch) -> None:
    text = "import os\nfrom lab.attention.rules.fixed import Fixed\n\nclass Mine(Fixed): ...\n"
    (run.parent / "my_rules.py").write_text(text)
    monkeypatch.syspath_prepend(run.parent)
    change(run, "softmax", _target_="my_rules.Mine", _partial_=True)
    with pytest.raises(LabError, match=r"softmax\._target_=my_rules\.Mine is not made: .* trust=my_rules allows this"):
        read_trained(run)
    assert "my_rules" not in sys.modules
    before = (run / "config.yaml").read_text()
    change(run, "optim", _target_="my_optim.Mine")
    with pytest.raises(LabError, match=r"softmax\._target_=my_rules\.Mine.* trust=\[\w+,\w+\] allows them too"):
        read_trained(run)
    with pytest.raises(LabError, match=r"optim\._target_=my_optim\.Mine is not made: .* trust=\[my_rules,my_optim\]"):
        read_trained(run, trust="my_rules")
    (run / "config.yaml").write_text(before)
    model: Any = read_trained(run, trust=["my_rules"]).model()
    assert type(model.rules()[0]).__name__ == "Mine"
    change(run, "softmax", _target_="my_rules.os.mkdir", path="touched")
    with pytest.raises(LabError, match="is not made"):
        read_trained(run, trust=["my_rules"])
    with pytest.raises(LabError, match=r"^trust=my_ruels: there is no such module"):
        read_trained(run, trust=["my_ruels"])
    (run.parent / "my_broken_rules.py").write_text("def rule(:\n")
    change(run, "softmax", _target_="my_broken_rules.Mine", _partial_=True)
    with pytest.raises(LabError, match=r"softmax\._target_=my_broken_rules\.Mine cannot be imported: "):
        read_trained(run, trust=["my_broken_rules"])


def test_nothing_is_downloaded_for_somebody_else(run: Path) -> None:
    images = {"_target_": "lab.datasets.sources.TorchvisionSource", "name": "MNIST", "root": "there", "download": True}
    task = {"_target_": "lab.datasets.tasks.main.MainTask"}
    sources = {"digits": images, "garments": {**images}}
    change(run, "data", _target_="lab.datasets.vision.VisionData", task=task, source=sources)
    with pytest.raises(FileNotFoundError, match="no MNIST in"):
        read_trained(run).model()
    assert not Path("there").exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (BOMB, r"line 2: \*a is an alias"),
        ("a: !!python/object/apply:os.mkdir [touched]", "python/object/apply:os.mkdir is a tag"),
        ("- " * 100_000, "more than 32 levels"),
        ("a: " + "{a: " * 100_000, "more than 32 levels"),
        ("a: " + "x" * 50 * 2**20, "it has 52,428,803 bytes"),
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "line 4: 'c' comes twice"),
        ("1: a", "line 1: a key is no text"),
        ("a: " + "9" * 10_000, "a number has 10,000 digits"),
        ("a: 1" + ":1" * 100_000, "a number has 200,001 digits"),
        ("a: [1,", "line 2: did not find expected node content"),
        ("a: \x00", "control characters"),
        ("- 1", "is no configuration"),
        ("", "is no configuration"),
    ],
)  # fmt: skip
def test_a_damaged_config_is_one_sentence(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(DamagedFile, match=told) as found:
        read_config(tmp_path)
    assert str(found.value).startswith(f"{tmp_path / 'config.yaml'} ") and "\n" not in str(found.value)


def test_numbers_dates_and_references_are_what_the_file_says(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("a: 1e-3\nb: 2020-01-01\nc: ${oc.env:HOME}\nd: '5'\n")
    assert read_config(tmp_path) == {"a": 0.001, "b": "2020-01-01", "c": "${oc.env:HOME}", "d": "5"}


@given(st.binary(max_size=200) | st.text("a:-[]{}&*!'\"|>?,%@`\n 0.e", max_size=60).map(str.encode))
def test_any_bytes_are_a_config_or_damage(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.getbasetemp()
    (folder / "config.yaml").write_bytes(content)
    try:
        assert isinstance(read_config(folder), dict)
    except DamagedFile as error:
        assert "config.yaml" in str(error)


def test_a_pipe_is_no_config(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.yaml")
    with pytest.raises(DamagedFile, match="it is no plain file"):
        read_config(tmp_path)


def test_a_run_with_a_damaged_config_is_not_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(BOMB)
    with pytest.raises(LabError, match=r"config\.yaml cannot be read: line 2.* force=true starts anew"):
        Run(tmp_path, primary=False).check_same(OmegaConf.create({"a": 1}))
