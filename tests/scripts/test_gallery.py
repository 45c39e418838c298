"""What the gallery says of its runs: numbers taken from them."""

from __future__ import annotations

from pathlib import Path

from conftest import write_a_summary

from lab.report.figures import shares_of_v
from lab.runs.summary import Summary, load_summary, write_summary
from scripts.gallery import told

ROWS = ((1, 1.0, 2.0, 10.0), (2, 3.0, 4.0, 10.0), (3, 2.0, 3.0, 10.0), (4, 50.0, 60.0, 10.0))


def a_run(folder: Path, **eureka: object) -> Path:
    write_a_summary(folder, experiment="reasoning", softmax="softmax", epochs=2000, eureka=eureka)
    head = "epoch,step," + ",".join(f"gradient/{name}/layer_0" for name in "qkv")
    (folder / "metrics.csv").write_text("\n".join([head, *(",".join(map(str, (0, *row))) for row in ROWS)]) + "\n")
    return folder


def test_only_what_came_before_the_moment_is_told(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", happened=True, epoch=630, step=4)
    assert shares_of_v(run, 4) == {"W_Q": 0.2, "W_K": 0.3}
    assert told(run) == (
        "`reasoning` under **softmax**: Eureka-moment at epoch 630 of 2,000 epochs. "
        "Gradients before the moment, as a median share of W_V's: W_Q 0.2 and W_K 0.3."
    )


def test_without_a_moment_all_steps_count(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", happened=False)
    summary = load_summary(run)
    git = {"git": {"commit": "0123456789abcdef"}, "started": "2026-11-28T12:00:00+00:00"}
    write_summary(run, Summary.model_validate(summary.model_dump() | git | {"machine": {"processor": "a chip"}}))
    assert told(run) == (
        "`reasoning` under **softmax**: no Eureka-moment in 2,000 epochs. "
        "Gradients over all steps, as a median share of W_V's: W_Q 0.25 and W_K 0.35. "
        "(a chip, 2026-11-28, commit 01234567.)"
    )


def test_a_run_without_gradients_is_not_told_of_any(tmp_path: Path) -> None:
    write_a_summary(tmp_path, experiment="reasoning", softmax="softmax", epochs=5, eureka={"happened": False})
    (tmp_path / "metrics.csv").write_text("epoch,step,val/accuracy\n1,1,0.5\n")
    assert told(tmp_path).endswith("5 epochs.")
