"""Published tables: every number in its place, every row one of the lab's runs, wrong files refused in one sentence."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import composed
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from lab.config.check import check
from lab.config.compose import CONFIGS
from lab.config.typed_file import read_typed
from lab.console import LabError
from lab.report.published import Cell, Paper, Table, load, names

RUNNABLE = [name for name in names() if load(name).experiment]
SWEPT = [name for name in names() if load(name).sweep]


def what_is_run(config, free: tuple[str, ...] = ()) -> str:
    """A config without its free keys, to be compared."""
    plain: Any = OmegaConf.to_container(config, resolve=True)
    for key in free:
        *path, last = key.split(".")
        node = plain
        for part in path:
            node = node[part]
        del node[last]
    return json.dumps(plain, sort_keys=True)


def test_every_table_is_there() -> None:
    eureka = ["figure_8", "figure_17", "section_5_3", *(f"table_{number}" for number in range(1, 12))]
    ours = [f"eureka/{name}" for name in eureka]
    assert names() == [*ours, "softmax_is_not_enough/figure_5", "softmax_is_not_enough/table_1"]


@pytest.mark.parametrize("name", names())
def test_a_table_says_what_it_is(name: str) -> None:
    table = load(name)
    assert table.name == name
    assert table.number.lower().replace(" ", "_").replace(".", "_") == name.split("/")[1]
    assert table.paper.url.startswith("https://arxiv.org/abs/")
    assert table.notes
    assert bool(table.experiment) == any(row.overrides for row in table.rows)


def test_papers_are_told_in_short() -> None:
    assert str(load("eureka/table_1").paper) == "Hoffmann et al., ICML 2024"
    assert str(load("softmax_is_not_enough/table_1").paper) == "Veličković et al., arXiv preprint 2024"
    assert str(Paper("Attention", ("Ada Lovelace",), "Letters", 1843, "")) == "Lovelace, Letters 1843"


# Typed from the papers by hand, row (from 0) and column; the labels say that the row is the right one.
SPOTS = {
    "eureka/table_1": {
        (3, "eureka_ratio"): ("ViT, τ = √d_k", "7/10"),
        (10, "accuracy"): ("NormSoftmax + HT, τ = 1/3 → √d_k", "89.83"),
        (11, "accuracy"): ("ViT, τ = √d_k", "-"),
        (14, "eureka_ratio"): ("NormSoftmax, τ = √d_k", "3/4"),
        (18, "eureka_epoch"): ("NormSoftmax + HT, τ = 1/3 → √d_k", "19"),
    },
    "eureka/table_2": {
        (0, "eureka_ratio"): ("ViT", "4/36"),
        (2, "eureka_ratio"): ("W_QKV grad scaling", "5/36"),
        (5, "eureka_ratio"): ("ViT + HT, τ = 1/3 → √d_k", "25/36"),
    },
    "eureka/table_3": {
        (2, "eureka_epoch"): ("4 heads of 64, depth 4, MLP ratio 2", "216.33 ± 46.64"),
        (6, "accuracy"): ("2 heads of 64, depth 7, MLP ratio 2", "-"),
        (8, "accuracy"): ("6 heads of 64, depth 4, MLP ratio 2", "89.75 ± 0.24"),
    },
    "eureka/table_4": {
        (2, "ratio_95"): ("ViT, τ = 1/0.075", "2/10"),
        (5, "accuracy"): ("ViT + Warmup 20, τ = √d_k", "87.65 ± 6.48"),
        (7, "eureka_epoch"): ("NormSoftmax, τ = √d_k", "28.20 ± 34.85"),
        (11, "percent_of_steps"): ("NormSoftmax + HT, τ = 1/3 → √d_k", "16.41"),
    },
    "eureka/table_5": {
        (0, "accuracy"): ("ResNet", "91.27 ± 0.30"),
        (4, "eureka_epoch"): ("NormSoftmax, τ = √d_k", "228.67 ± 8.22"),
        (9, "eureka_ratio"): ("ViT, 6 heads, depth 4", "0/0"),
    },
    "eureka/table_8": {
        (0, "eureka_epoch"): ("ViT, τ = √d_k", "91.50 ± 60.04"),
        (1, "accuracy"): ("ViT, τ = 1/3", "98.95 ± 0.10"),
        (2, "eureka_ratio"): ("NormSoftmax, τ = √d_k", "4/4"),
    },
    "eureka/figure_8": {
        (0, "eureka_ratio"): ("Softmax", "3/5"),
        (1, "eureka_ratio"): ("Softmax + HT", "4/5"),
        (2, "eureka_ratio"): ("NormSoftmax", "5/5"),
    },
    "softmax_is_not_enough/table_1": {
        (0, "size_16384"): ("Baseline", "12.4"),
        (1, "size_512"): ("Adaptive θ", "72.5"),
        (2, "size_8192"): ("p-value", "10⁻³"),
    },
}


@pytest.mark.parametrize("name", SPOTS)
def test_cells_are_the_papers(name: str) -> None:
    rows = load(name).rows
    for (place, column), (label, shown) in SPOTS[name].items():
        assert rows[place].label == label
        assert str(rows[place].cells[column]) == shown


def test_averages_are_of_whole_epochs() -> None:
    """A wrong digit shows: the average of n Eureka-epochs times n is whole, and that of a single one has no spread."""
    checked = 0
    for name in names():
        for row in load(name).rows:
            epoch, ratio = row.cells.get("eureka_epoch"), row.cells.get("eureka_ratio")
            if epoch is None or ratio is None or epoch.mean is None or ratio.count is None:
                continue
            assert abs(round(epoch.mean * ratio.count) / ratio.count - epoch.mean) < 0.01, (name, row.label)
            assert ratio.count > 1 or not epoch.std, (name, row.label)
            checked += 1
    assert checked > 50


def test_tables_that_repeat_numbers_agree() -> None:
    """Table 1 is Tables 4 and 5 without their ResNet, their larger model and their standard deviations."""
    first, main, no_position = (load(f"eureka/table_{number}").rows for number in (1, 4, 5))
    full = [*main[1:], *no_position[1:-1]]
    assert len(full) == len(first)
    for short, long in zip(first, full, strict=True):
        assert short.label == long.label
        assert short.overrides is not None and long.overrides is not None
        assert short.overrides[-1] == long.overrides[-1]
        for column in ("eureka_ratio", "accuracy", "eureka_epoch"):
            one, other = short.cells[column], long.cells[column]
            assert (one.count, one.of, one.text) == (other.count, other.of, other.text)
            # 228.67 is 228 in Table 1.
            assert one.mean == other.mean or int(one.mean or 0) == int(other.mean or 0) == 228


@pytest.mark.parametrize("name", RUNNABLE)
def test_rows_compose_and_differ(name: str) -> None:
    table = load(name)
    runs = {(row.group, row.label): table.overrides_of(row) for row in table.rows}
    configs = {key: composed(*overrides) for key, overrides in runs.items() if overrides is not None}
    for config in configs.values():
        check(config)
    told = {key: what_is_run(config, table.free) for key, config in configs.items()}
    for one, other in combinations(told, 2):
        assert told[one] != told[other], (one, other)


def test_the_no_position_rows_of_table_1_are_the_experiments() -> None:
    table = load("eureka/table_1")
    rows = [row for row in table.rows if row.group == "No-position task"]
    assert len(rows) == 8
    ours = composed(*(table.overrides_of(rows[0]) or ()))
    theirs = composed("experiment=no_position", "+row=vit")
    assert what_is_run(ours) == what_is_run(theirs)


@pytest.mark.parametrize("name", SWEPT)
def test_sweeps_run_just_these_rows(name: str) -> None:
    table = load(name)
    content = yaml.safe_load((CONFIGS / "sweep" / f"{table.sweep}.yaml").read_text())
    params = content["hydra"]["sweeper"]["params"]
    assert table.experiment == (f"experiment={params.pop('experiment')}",)
    # The schedules of Table 2 are free: a row has all of them.
    swept = [(key, value) for key, value in params.items() if key not in ("seed", "optim/lr")]
    assert len(swept) == 1
    override = OverridesParser.create().parse_override("=".join(swept[0]))
    runs = {f"{swept[0][0]}={value}" for value in override.sweep_string_iterator()}
    rows = [row.overrides for row in table.rows]
    if name == "eureka/table_1":
        # Its lower half is Table 5's sweep, and the sweep has Table 4's ResNet.
        rows = [row.overrides for row in table.rows if row.group == "Main dataset"]
        runs.remove("+row=resnet9")
    assert {overrides[0] for overrides in rows if overrides} == runs
    assert len(rows) == len(runs)


def test_schedules_are_the_configs() -> None:
    rows = load("eureka/table_11").rows
    configs = [OmegaConf.load(path) for path in (CONFIGS / "optim" / "lr").glob("*_min_*.yaml")]
    published = {(row.cells["max_lr"].mean, row.cells["min_lr"].mean) for row in rows}
    assert len(rows) == len(published) == 9
    assert published == {(float(config.lr), float(config.min_lr)) for config in configs}
    swept = load("eureka/section_5_3").rows
    assert [row.label for row in swept] == [row.label for row in rows]


def test_the_polynomial_is_the_config() -> None:
    rows = load("softmax_is_not_enough/figure_5").rows
    config: Any = OmegaConf.load(CONFIGS / "softmax" / "adaptive_temperature.yaml")
    assert [row.cells["coefficient"].mean for row in reversed(rows)] == list(config.coefficients)


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        (Cell(count=7, of=10), "7/10"),
        (Cell(mean=88.3, std=1.2), "88.3 ± 1.2"),
        (Cell(mean=28.2, std=34.85), "28.20 ± 34.85"),
        (Cell(mean=117), "117"),
        (Cell(mean=174.67), "174.67"),
        (Cell(text="-"), "-"),
        (Cell(mean=2e-5, text="2 · 10⁻⁵"), "2 · 10⁻⁵"),
    ],
)
def test_cells_are_shown_as_papers_print_them(cell: Cell, shown: str) -> None:
    assert str(cell) == shown


@pytest.mark.parametrize(
    "name", ["eureka/table_12", "eureka/table_1.yaml", "eureka/paper", "../published/eureka/table_1"]
)
def test_an_unknown_table_is_answered_with_the_valid_ones(name: str) -> None:
    with pytest.raises(LabError) as error:
        load(name)
    assert repr(name) in str(error.value)
    assert "valid: eureka/figure_17" in str(error.value)
    assert "\n" not in str(error.value)


RIGHT = """
number: Table 99
title: A title
caption: A caption
experiment: [experiment=main_task]
columns:
  eureka_ratio: {title: Eureka-ratio, unit: runs}
rows:
  - label: ViT
    overrides: [+row=vit]
    cells: {eureka_ratio: {count: 4, of: 10}}
"""


def written(folder: Path, text: str) -> Table:
    path = folder / "table_99.yaml"
    path.write_text(text)
    return read_typed(path, Table, name="a/table_99", paper=load("eureka/table_1").paper)


def test_a_right_file_is_read(tmp_path: Path) -> None:
    table = written(tmp_path, RIGHT)
    assert table.overrides_of(table.rows[0]) == ("experiment=main_task", "+row=vit")
    assert (table.free, table.sweep, table.notes) == ((), None, ())


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        ("title: A title", "titel: A title", "titel is not known; did you mean 'title'"),
        ("title: A title", "name: mine\ntitle: A title", "name follows from where the file lies: leave it out"),
        ("number: Table 99", "", "number: is missing"),
        ("label: ViT", "lable: ViT", "rows.0.lable is not known; did you mean 'label'"),
        ("{count: 4, of: 10}", "{cuont: 4, of: 10}", "eureka_ratio.cuont is not known; did you mean 'count'"),
        (
            "{title: Eureka-ratio",
            "{titel: Eureka-ratio",
            "columns.eureka_ratio.titel is not known; did you mean 'title'",
        ),
        ("{count: 4, of: 10}", "{count: 11, of: 10}", "0 <= count <= of and of >= 1, got 11 of 10"),
        ("{count: 4, of: 10}", "{count: 0, of: 0}", "got 0 of 0"),
        ("{count: 4, of: 10}", "{count: 4}", "count and of must be given together"),
        ("{count: 4, of: 10}", "{std: 1.5}", "std needs a mean"),
        ("{count: 4, of: 10}", "{}", "a cell has either"),
        ("{count: 4, of: 10}", "{count: 4, of: 10, mean: 3}", "a cell has either"),
        ("{count: 4, of: 10}", "{mean: many}", "rows.0.cells.eureka_ratio.mean"),
        ("cells: {eureka_ratio:", "cells: {eureka_rato:", "column 'eureka_rato'; did you mean 'eureka_ratio'"),
        ("cells: {eureka_ratio: {count: 4, of: 10}}", "cells: {}", "no cell in column 'eureka_ratio'"),
        ("experiment: [experiment=main_task]", "", "the table has no experiment"),
        ("label: ViT", "label: ViT\n    label: ViT", "duplicate key label"),
        ("rows:", "rows: [", "cannot be read"),
        (RIGHT, "- a list", "must hold keys and values"),
    ],
)
def test_wrong_files_are_refused_by_name(tmp_path: Path, right: str, wrong: str, words: str) -> None:
    assert right in RIGHT
    with pytest.raises(LabError) as error:
        written(tmp_path, RIGHT.replace(right, wrong))
    assert str(tmp_path / "table_99.yaml") in str(error.value)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_two_rows_of_one_name_are_refused(tmp_path: Path) -> None:
    row = RIGHT[RIGHT.index("  - label") :]
    with pytest.raises(LabError, match="two rows are called 'ViT'"):
        written(tmp_path, RIGHT + row)
    assert len(written(tmp_path, RIGHT + row.replace("ViT", "ViT\n    group: Below")).rows) == 2
