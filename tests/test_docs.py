"""The documentation builds, and what it tells a reader to write works."""

from __future__ import annotations

import inspect
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import yaml
from conftest import OPTUNA, ROOT, problem_with

import lab
from lab.config.compose import CONFIGS


def test_the_pages_build_without_a_warning_and_open_offline(tmp_path: Path) -> None:
    for package in ("mkdocs_jupyter", "mkdocstrings", "latex2mathml"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install -e '.[docs]'")
    shutil.rmtree(ROOT / "build" / "api", ignore_errors=True)  # as on a fresh checkout
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    pages = {path.parent.name: path.read_text() for path in (tmp_path / "site").rglob("index.html")}
    assert "Gallery" in pages["site"] and 'id="lab.Recorder"' in pages["api"]
    for name in ("softmax", "own_softmax"):
        assert "<math" in pages[name] and "arithmatex" not in pages[name]
    for name, page in pages.items():
        loaded = re.findall(r"<(?:script|img|link)\b[^>]*\b(?:src|href)=\"(https?:[^\"]+)", page)
        assert not [url for url in loaded if "canonical" not in url], name
        assert not re.findall(r'<a\b[^>]*href="\.[^"]*\.md[#"]', page), name


def documented() -> list[str]:
    """Names that the page of the API shows."""
    return re.findall(r"^::: (\S+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)


def functions_of(found: Any) -> Iterator[Any]:
    """The functions that a name of that page shows: itself, or those of a class or a module."""
    if inspect.isfunction(found):
        yield found
    else:
        home = found.__name__ if inspect.ismodule(found) else None
        for name, member in vars(found).items():
            member = getattr(member, "__func__", member)
            # Of a dataclass the lab makes the instances.
            shown = not name.startswith("_") or (name == "__init__" and not is_dataclass(found))
            if shown and inspect.isfunction(member) and (home is None or member.__module__ == home):
                yield member


def test_the_page_of_the_api_shows_every_public_name_and_strings_do_for_paths() -> None:
    assert {f"lab.{name}" for name in lab.__all__} - {"lab.__version__"} <= set(documented())
    checked = 0
    for name in documented():
        for function in functions_of(resolve_name(name)):
            for parameter in inspect.signature(function).parameters.values():
                told = str(parameter.annotation)
                checked += 1
                assert not re.search(r"\bPath\b", told) or re.search(r"\bstr\b", told), f"{name}: {parameter}"
    assert checked > 100


def test_every_diagnostic_stands_in_the_table() -> None:
    text = (ROOT / "docs" / "diagnostics.md").read_text()
    ready = (ROOT / "configs" / "callbacks").glob("*.yaml")
    diagnostics = {path.stem for path in ready if "${diagnostics.every_n_epochs}" in path.read_text()}
    missing = {name for name in diagnostics if f"| `{name}` |" not in text}
    assert diagnostics and not missing, f"docs/diagnostics.md has no row for {missing}"


def test_every_experiment_and_softmax_stands_in_the_tables() -> None:
    for page, group in (("tasks", "experiment"), ("softmax", "softmax")):
        text = (ROOT / "docs" / f"{page}.md").read_text()
        missing = [path.stem for path in (CONFIGS / group).glob("*.yaml") if f"`{path.stem}`" not in text]
        assert not missing, f"docs/{page}.md has no row for {missing}"


def test_every_option_of_the_slurm_launcher_stands_in_the_table() -> None:
    table = [line for line in (ROOT / "docs" / "cluster.md").read_text().splitlines() if line.startswith("| `")]
    named = {word for line in table for word in re.findall(r"`(\w+)`", line.split("|")[1])}
    ready = yaml.safe_load((CONFIGS / "hydra" / "launcher" / "slurm.yaml").read_text())
    assert ready.keys() - {"_target_"} <= named


@pytest.fixture(scope="module")
def configs(tmp_path_factory) -> Path:
    """The lab's configs, and those that the pages tell a reader to write."""
    folder = tmp_path_factory.mktemp("docs") / "configs"
    shutil.copytree(CONFIGS, folder)
    for page in (ROOT / "docs").glob("*.md"):
        printed = r"```yaml\n((?:# @package \S+\n)?# conf(?:igs)?/(\S+)\n.*?)```"
        for text, name in re.findall(printed, page.read_text(), re.DOTALL):
            assert not (folder / name).exists()
            (folder / name).write_text(text)
    return folder


def trainings_in(page: Path) -> list[str]:
    """Lines that train; those with a folder of one's own are typed by tests/lab/test_train.py."""
    commands = ("python -m lab.train ", "eureka-train ")
    return [line for line in page.read_text().splitlines() if line.startswith(commands) and "--config-dir" not in line]


# Of the commit that the page names.
GONE = {"scripts.search.main_task_small"}
TRAINING = [page for page in sorted((ROOT / "docs").glob("*.md")) if trainings_in(page)]


def test_a_shell_can_read_every_command() -> None:
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "results").rglob("*.md")):
        for block in re.findall(r"^```bash\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            # Words in angle brackets stand for what the reader fills in.
            text = re.sub(r"<[^<>\n]+>", "X", block)
            read = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
            assert not read.returncode, f"{page.relative_to(ROOT)}: {read.stderr}"


@pytest.mark.parametrize("page", TRAINING, ids=lambda path: path.name)
def test_commands_in_the_pages_compose(page: Path, configs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.config.compose.CONFIGS", configs)
    for line in trainings_in(page):
        command = line[: line.index("train ") + len("train ")]
        words = [word.strip("'") for word in line.removeprefix(command).split("#")[0].split()]
        problem = problem_with([word for word in words if "=" in word])
        assert problem is None or (not OPTUNA and "[optuna]" in problem), line


def test_commands_on_results_pages_compose_and_name_scripts_that_exist() -> None:
    """What a page leaves to the reader, as in ``seed=...``, is filled in."""
    filled = {"softmax=...": "softmax=softmax", "=...": "=0"}
    found = 0
    for page in sorted((ROOT / "results").rglob("*.md")):
        text = page.read_text()
        blocks = re.findall(r"^```(?:bash)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        typed = "\n".join(blocks).replace("\\\n", " ").splitlines()
        typed += re.findall(r"`(python -m lab\.train [^`<]+)`", text)
        for line in (line for line in typed if line.startswith("python -m lab.train ")):
            for left, value in filled.items():
                line = line.replace(left, value)
            assert problem_with(shlex.split(line, comments=True)[3:]) is None, f"{page.relative_to(ROOT)}: {line}"
            found += 1
        for module in set(re.findall(r"python -m (scripts\.[a-z_.0-9]*[a-z0-9])", text)) - GONE:
            assert find_spec(module), f"{page.relative_to(ROOT)}: {module}"
    assert found
