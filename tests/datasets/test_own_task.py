"""A task and a data module of one's own: what docs/tasks.md tells a reader to write, written and run as printed."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
import torch
from conftest import ROOT, newest, only_run, python, runs_in

from lab.config.check import check_arguments
from lab.console import LabError
from lab.datasets.loading import DataModule
from lab.observation.observe import with_kinds
from scripts.scenes import picture

PAGE = (ROOT / "docs" / "tasks.md").read_text()

# By path, the files that the page tells a reader to write.
FILES = dict(re.findall(r"```(?:python|yaml)\n# (\S+\.(?:py|yaml))\n(.*?)```", PAGE, re.DOTALL))
TASK, DATA = "datasets/tasks/same_parity.py", "datasets/even_first.py"

# Of drawn images, and so few of them that a run takes seconds.
DRAWN = ["data/source=drawn"] + [
    f"data.source.{kind}.{split}_size=60" for kind in ("digits", "garments") for split in ("train", "test")
]
SMALL = ["data.tile_size=8", "data.batch_size=16", "data.epoch_size=32", "data.validation_size=32", "debug=fast"]
TINY = ["model.depth=1", "model.heads=1", "model.head_dim=8", "threads=1"]


def command(words: str) -> list[str]:
    """The one command line of the page that holds ``words``, without ``python``."""
    lines = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
    (found,) = [line for line in lines if words in line]
    python, *rest = shlex.split(found)
    assert python == "python"
    return rest


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """The repository's code, with the page's files in it."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("lab", "datasets", "callbacks", "hydra_plugins", "configs"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "scenes.py", folder / "scripts")
    for path, text in FILES.items():
        assert not (ROOT / path).exists(), f"{path} of the page would overwrite a file of the lab"
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def loaded(clone: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the page, under the name that it has in the repository."""
    name = path.removesuffix(".py").replace("/", ".")
    name = name if name.startswith("tests.") else f"lab.{name}"
    spec = importlib.util.spec_from_file_location(name, clone / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_whole_files() -> None:
    assert set(FILES) == {
        TASK,
        "configs/data/task/same_parity.yaml",
        "tests/datasets/test_same_parity.py",
        DATA,
        "configs/data/even_first.yaml",
    }


def test_the_task_trains_by_its_name(clone: Path) -> None:
    watched = "callbacks=[default,attention_mass,linear_probes]"
    train = command("python -m lab.train experiment=main_task data/task=same_parity")
    python(*train, *DRAWN, *SMALL, *TINY, watched, "callbacks.linear_probes.scenes=32", folder=clone)
    run = only_run(clone / "runs" / "main_task")
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "finished"
    # A garment is one of ten, and half of the pairs of digits are alike.
    assert summary["eureka"]["prior_accuracy"] == pytest.approx(0.55, abs=0.2)
    assert {"val/accuracy_top_right", "val/accuracy_bottom_left"} <= set(summary["metrics"])
    assert {"indicator", "target"} <= set(pd.read_csv(run / "diagnostics" / "attention_mass.csv")["region"])
    assert "indicator_1" in set(pd.read_csv(run / "diagnostics" / "linear_probes.csv")["target"])
    assert (run / "pictures" / "scenes.png").exists()


def test_the_task_is_drawn(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Beside the lab that is installed, its copy with the page's files.
    monkeypatch.setenv("PYTHONPATH", str(clone))
    draw = command("python scripts/scenes.py main_task --set data/task=same_parity")
    draw[draw.index("--out") : draw.index("--out")] = [*DRAWN]
    python(*draw, folder=clone)
    assert (clone / "pictures" / "main_task.png").stat().st_size > 5000


def test_the_tasks_own_test_passes(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = loaded(clone, TASK, monkeypatch)
    own = loaded(clone, "tests/datasets/test_same_parity.py", monkeypatch)
    own.test_same_parity()
    # And would not, were the rule another one than the scenes follow.
    monkeypatch.setattr(module.SameParity, "label", lambda self, latents: latents["target_1"])
    with pytest.raises(ValueError, match="SameParity: where target_location says bottom_left, target_2 has to decide"):
        own.test_same_parity()


def test_the_data_module_follows_its_rule(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data: DataModule = loaded(clone, DATA, monkeypatch).EvenFirstData(batch_size=500, validation_size=1200)
    batch = data.draw_train(0, 0)
    for (a, b, c, equals), label in zip(batch["x"].tolist(), batch["y"].tolist(), strict=True):
        assert equals == 10
        assert label == (b if a % 2 == 0 else c)
    assert torch.equal(batch["x"], data.draw_train(0, 0)["x"])
    assert not torch.equal(batch["x"], data.draw_train(0, 1)["x"])
    assert [len(part["y"]) for part in data.val_dataloader()] == [500, 500, 200]
    assert data.prior_accuracy() == pytest.approx(0.55, abs=0.05)
    regions = with_kinds(data.regions(batch))
    assert regions["target"][7].tolist() == [False, True, True, False]
    with pytest.raises(LabError, match=r"data\.numbers=0 is wrong: it must be greater than 0"):
        check_arguments(type(data), {"numbers": 0}, "data")


def test_the_data_module_trains_by_its_name_alone_and_in_seeds(clone: Path) -> None:
    train = command("python -m lab.train experiment=reasoning data=even_first")[2:]
    short = ["trainer.max_epochs=2", "trainer.check_val_every_n_epoch=1", "data.epoch_steps=4", "threads=1"]
    watched = ["callbacks=[reasoning,attention_mass]", "diagnostics.every_n_epochs=1"]
    asked = [*train, *short, *watched]
    # In one process, which imports all of it once.
    both = f"run({[*asked, 'paths.runs=alone']}), run({[*asked, 'seeds=2', 'paths.runs=seeds']})"
    python("-c", f"from lab.train import run\n{both}", folder=clone)
    run = only_run(clone / "alone")
    assert {"indicator", "target"} <= set(pd.read_csv(run / "diagnostics" / "attention_mass.csv")["region"])
    assert {"val/accuracy_b", "val/accuracy_c"} <= set(pd.read_csv(run / "metrics.csv").columns)
    for single in (run, *runs_in(clone / "seeds")):
        assert json.loads((single / "summary.json").read_text())["status"] == "finished"
    first = newest(clone / "seeds" / run.relative_to(clone / "alone"))
    torch.testing.assert_close(*(one["state_dict"]["model.head.weight"] for one in (newest(run), first)))


@pytest.mark.pictures
@pytest.mark.parametrize("experiment", ["reasoning", "max_retrieval"])
def test_what_has_no_canvas_is_drawn(experiment: str, tmp_path: Path) -> None:
    assert picture(experiment, [], tmp_path, count=3).stat().st_size > 5000


def test_every_task_has_its_section_and_its_picture() -> None:
    own_pages = {"language": "language.md", "induction": "language.md"}
    own_pages |= {"clrs_text": "clrs_text.md", "in_context": "in_context.md"}
    for path in (ROOT / "configs" / "experiment").glob("*.yaml"):
        if path.stem == "reasoning_small":  # of the first page: a reasoning task with fewer numbers
            assert f"experiment={path.stem}" in (ROOT / "docs" / "index.md").read_text()
            continue
        if own_page := next((page for name, page in own_pages.items() if name in path.stem), None):
            assert f"experiment={path.stem}" in (ROOT / "docs" / own_page).read_text()
            continue
        assert f"`experiment={path.stem}`" in PAGE
        assert f"pictures/tasks/{path.stem}.png" in PAGE
        drawn = (ROOT / "docs" / "pictures" / "tasks" / f"{path.stem}.png").exists()
        assert drawn, f"draw it: python scripts/scenes.py {path.stem} --out docs/pictures/tasks"
