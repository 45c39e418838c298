"""Run folders that tests of reports write by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf
from report_runs import EPOCHS, folder_of

from lab.config.compose import compose_config


@pytest.fixture(scope="session")
def configs() -> dict[tuple[str, ...], dict]:
    """Configs by the options typed: composing one takes long."""
    return {}


@pytest.fixture
def write(tmp_path: Path, configs):
    """Writes a run folder: ``write(seed, moment, "optim.lr=1e-3", softmax="norm_softmax", status="finished")``.

    Validations of ``epochs`` epochs; the training goes on to epoch ``watched``, where that is given.
    """

    def make(
        seed: int,
        moment: int | None,
        *overrides: str,
        experiment: str = "reasoning",
        softmax: str = "softmax",
        status: str = "finished",
        accuracy: float | None = None,
        epochs: int = EPOCHS,
        watched: int | None = None,
        root: Path = tmp_path,
    ) -> Path:
        typed = (f"experiment={experiment}", f"softmax={softmax}", *overrides, f"seed={seed}")
        if typed not in configs:
            config = compose_config(typed)
            config.paths.run = "somewhere"
            configs[typed] = OmegaConf.to_container(config, resolve=True)
        own = accuracy if accuracy is not None else (0.9 if moment else 0.5)
        summary = {
            "status": status,
            "experiment": experiment,
            "softmax": softmax,
            "seed": seed,
            "overrides": list(typed),
            "epochs": watched or epochs,
            "steps": 10 * (watched or epochs),
            "max_epochs": EPOCHS,
            "wall_seconds": 60.0,
            "eureka": {"happened": moment is not None, "threshold": 0.7},
            "metrics": {"val/accuracy": own},
        }
        if moment:
            summary["eureka"] |= {"epoch": moment, "step": 10 * moment, "accuracy": 0.75}
        folder = folder_of(root, seed, *typed, experiment=experiment, softmax=softmax)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "summary.json").write_text(json.dumps(summary))
        (folder / "config.yaml").write_text(yaml.safe_dump(configs[typed]))
        rows = ["step,epoch,gradient/k/layer_0,gradient/q/layer_0,gradient/v/layer_0,train/loss,val/accuracy,val/loss"]
        for epoch in range(epochs):
            rows.append(f"{10 * epoch},{epoch}.0,1e-3,2e-3,3e-2,,,")
            value = own if moment and epoch + 1 >= moment else 0.5
            rows.append(f"{10 * epoch + 9},{epoch}.0,,,,{1 - value},{value},{1 - value}")
        if watched:
            rows.append(f"{10 * watched - 1},{watched - 1}.0,,,,0.5,,")
        (folder / "metrics.csv").write_text("\n".join(rows) + "\n")
        return folder

    return make
