"""The documentation builds, and what it tells a reader to write works."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from conftest import OPTUNA, ROOT, problem_with

from lab.callbacks.diagnostics.base import Diagnostic
from lab.config.compose import CONFIGS
from lab.observation.observe import observe


def test_the_pages_build_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Gallery" in (tmp_path / "site" / "index.html").read_text()


def test_every_diagnostic_stands_in_the_table() -> None:
    text = (ROOT / "docs" / "diagnostics.md").read_text()
    for path in (ROOT / "configs" / "callbacks").glob("*.yaml"):
        if "${diagnostics.every_n_epochs}" in path.read_text():
            assert f"| `{path.stem}` |" in text


def test_every_option_of_the_slurm_launcher_stands_in_the_table() -> None:
    table = [line for line in (ROOT / "docs" / "cluster.md").read_text().splitlines() if line.startswith("| `")]
    named = {word for line in table for word in re.findall(r"`(\w+)`", line.split("|")[1])}
    ready = yaml.safe_load((CONFIGS / "hydra" / "launcher" / "slurm.yaml").read_text())
    assert ready.keys() - {"_target_"} <= named


def test_the_diagnostic_of_ones_own_works(tmp_path: Path, vision_data) -> None:
    code = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "diagnostics.md").read_text(), re.DOTALL)
    assert code is not None
    module = ModuleType("sharpest")
    exec(code.group(1), module.__dict__)
    own: Diagnostic = module.Sharpest(folder=str(tmp_path), scenes=10)
    from lab.models.compact_vit import CompactViT

    model = CompactViT(**vision_data.model_arguments(), patch_size=14, depth=2, heads=2, head_dim=8)
    (found,) = observe(model, vision_data, [own], next(model.parameters()).device)
    assert own.name == "sharpest" and len(found.rows) == 2
    assert 1 / 17 < found.rows[0]["largest"] <= 1


@pytest.fixture(scope="module")
def configs(tmp_path_factory) -> Path:
    """The lab's configs, and those that the pages tell a reader to write."""
    folder = tmp_path_factory.mktemp("docs") / "configs"
    shutil.copytree(CONFIGS, folder)
    for page in (ROOT / "docs").glob("*.md"):
        for name, text in re.findall(r"```yaml\n# conf(?:igs)?/(\S+)\n(.*?)```", page.read_text(), re.DOTALL):
            assert not (folder / name).exists()
            (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_commands_in_the_pages_compose(page: Path, configs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.config.compose.CONFIGS", configs)
    monkeypatch.setattr("lab.config.overrides.CONFIGS", configs, raising=False)
    for line in page.read_text().splitlines():
        # With a folder of one's own, by tests/lab/test_train.py.
        if line.startswith("python -m lab.train") and "--config-dir" not in line:
            words = [word.strip("'") for word in line.removeprefix("python -m lab.train").split("#")[0].split()]
            problem = problem_with([word for word in words if "=" in word])
            assert problem is None or (not OPTUNA and "[optuna]" in problem), line
