"""Wheel and sdist hold all that the lab needs; installed beside Hugging Face's packages, both it and they work."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT, python

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),  # a dozen starts of Python and torch, which busy neighbours make long
    pytest.mark.skipif(
        not {"build", "pip", "datasets", "transformers"} <= {one.name for one in importlib.metadata.distributions()},
        reason="build, pip, datasets and transformers are needed: pip install -e '.[test]'",
    ),
]

# Whichever is imported first, `datasets` is Hugging Face's and works, and so does the lab.
BESIDE = """
import sys
there, runs, *order = sys.argv[1:]
for name in order:
    __import__(name)
import datasets, transformers
import lab
assert datasets.Dataset.from_dict({"n": [1, 2]})["n"][1] == 2
assert transformers.BertConfig(num_hidden_layers=1).num_hidden_layers == 1
assert lab.__file__.startswith(there), lab.__file__
assert lab.run(["experiment=reasoning", "trainer.max_epochs=2", f"paths.runs={runs}"])[0].finished
print(datasets.__file__)
"""
THEIRS_FIRST = ("datasets", "lab.datasets.reasoning")
OURS_FIRST = ("lab.datasets.reasoning", "datasets")
SHORT = ("experiment=reasoning", "trainer.max_epochs=2")
RUN = "runs/reasoning_small/norm_softmax/seed=2"


def first_steps() -> list[str]:
    """The three commands of docs/index.md."""
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    block = re.search(r"## Three commands.*?```bash\n(.*?)```", page, re.DOTALL)
    assert block is not None
    return block[1].splitlines()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository, copied: what builds leave behind is no business of the original."""
    folder = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    for name in ("lab", "configs", "callbacks", "datasets", "hydra_plugins", "tests"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an sdist, and of the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("built")
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source, folder=source)
    return folder


def settings_of(folder: Path) -> dict[str, str]:
    """Environment variables of a user whose machine has no network."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return environment | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / ".hf")}


def call(*words: str | Path, folder: Path) -> str:
    """Runs a command in ``folder``; what it prints."""
    typed = [*map(str, words)]
    done = subprocess.run(typed, cwd=folder, capture_output=True, text=True, timeout=300, env=settings_of(folder))
    assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


def call_in(bin_folder: Path, command: str, *words: str | Path, folder: Path) -> str:
    """Runs ``python`` or a console command of an environment in ``folder``; what it prints."""
    script = () if command == "python" else (str(bin_folder / command),)
    interpreter = str(bin_folder / "python")
    typed = (*script, *map(str, words))
    return python(*typed, folder=folder, environment=settings_of(folder), interpreter=interpreter).stdout


def environment_of(folder: Path, *to_install: str | Path) -> Path:
    """A virtual environment with the lab, which sees the packages of this one, but not this one's lab; its bin folder.

    Torch is not installed anew. An editable installation is not seen by way of a .pth file that names its folder.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    bin_folder = folder / "bin"
    packages = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    own = Path(
        call(bin_folder / "python", "-c", "import site; print(site.getsitepackages()[0])", folder=folder).strip()
    )
    (own / "packages_of_the_tests.pth").write_text("\n".join(packages))
    # Ignoring what is installed: the lab of this environment must neither count as one nor be removed.
    options = ("--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed", "--quiet")
    pip = (sys.executable, "-m", "pip", "--python", bin_folder / "python", "install")
    call(*pip, *options, *to_install, folder=folder)
    return bin_folder


def check_beside(bin_folder: Path, order: tuple[str, str], folder: Path, there: Path, runs: Path) -> None:
    """Imports Hugging Face's packages and the lab, which lies below ``there``, in a process started in ``folder``."""
    told = call_in(bin_folder, "python", "-c", BESIDE, there, runs, *order, folder=folder).splitlines()[-1]
    assert Path(told).parent.parent.name in ("site-packages", "dist-packages")


def names_below(folder: Path, suffix: str) -> set[str]:
    """Files of ``folder`` in the repository, by path."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob(f"*{suffix}")}


def test_wheel_and_sdist_hold_the_lab_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    (sdist,) = built.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as file:
        in_wheel = set(file.namelist())
    with tarfile.open(sdist) as file:
        assert not [member.name for member in file if member.issym() or member.islnk()]
        in_sdist = {member.name.partition("/")[2] for member in file if member.isfile()}

    wanted = {f"lab/configs/{name}" for name in names_below(ROOT / "configs", ".yaml")}
    for room in ("datasets", "callbacks"):
        wanted |= {f"lab/{room}/{name}" for name in names_below(ROOT / room, ".py")}
    wanted |= {f"lab/report/{name}" for suffix in (".yaml", ".j2") for name in names_below(ROOT / "lab/report", suffix)}
    wanted |= {"lab/py.typed", "lab/train.py", "hydra_plugins/eureka_lab/__init__.py"}
    assert not wanted - in_wheel
    assert not wanted - in_sdist
    assert {name.partition("/")[0] for name in in_wheel if ".dist-info" not in name} == {"lab", "hydra_plugins"}
    assert not [name for name in in_wheel | in_sdist if "test" in name.lower()]
    assert not [name for name in in_sdist if name.startswith(("datasets/", "callbacks/", "configs/"))]


def test_a_wheel_beside_hugging_face(built: Path, tmp_path: Path) -> None:
    """All five commands are there; in an empty folder, a stranger's way ends with a report of a Eureka-moment."""
    commands = environment_of(tmp_path / "env", *built.glob("*.whl"))
    assert {f"eureka-{name}" for name in ("train", "inspect", "report", "status", "bench")} <= {
        path.name for path in commands.iterdir()
    }
    (work := tmp_path / "work").mkdir()
    # A checkout of something else: its commit is not the lab's.
    call("git", "init", "--quiet", folder=tmp_path)
    for number, order in enumerate((THEIRS_FIRST, OURS_FIRST)):
        check_beside(commands, order, work, tmp_path / "env", tmp_path / str(number))

    # The commands of the first page, up to a report of a Eureka-moment; one seed of the five.
    for line in first_steps():
        command, *words = shlex.split(line.replace("seeds=5", "seed=2"))
        call_in(commands, command, *words, folder=work)
    first = work / RUN
    assert '"commit": null' in (first / "provenance.json").read_text()
    assert json.loads((first / "summary.json").read_text())["eureka"]["happened"] is True
    table = (work / "runs" / "report" / "report.md").read_text()
    assert "| norm_softmax | 1 | 1/1" in table and "| softmax (baseline) | 1 | " in table
    assert (work / "runs" / "report" / "index.html").stat().st_size > 10_000
    assert "finished" in call_in(commands, "eureka-status", folder=work)

    # A module of one's own in the current folder is found by a console command as by `python -m`.
    (work / "my_rules.py").write_text("from lab.attention.rules.fixed import Fixed as Mine\n")
    call_in(commands, "eureka-train", *SHORT, "softmax._target_=my_rules.Mine", "paths.runs=own", folder=work)
    (run,) = (work / "own" / "reasoning").glob("*/seed=0")
    call_in(commands, "eureka-inspect", f"run={run}", "diagnostics=[attention_entropy]", "trust=my_rules", folder=work)
    assert list(run.glob("inspect/*/diagnostics/*.csv"))


def test_an_editable_installation_beside_hugging_face(source: Path, tmp_path: Path) -> None:
    """Inside the repository, where a folder is called `datasets`, and outside."""
    commands = environment_of(tmp_path / "env", "--editable", source)
    check_beside(commands, OURS_FIRST, source, source, tmp_path / "inside")
    check_beside(commands, THEIRS_FIRST, tmp_path, source, tmp_path / "outside")
