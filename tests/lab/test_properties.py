"""Properties that hold of any input: what is written is read again, and what is no good is told in one sentence."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from lab.config.command_line import composed
from lab.config.overrides import quoted, read_override
from lab.console import LabError
from lab.runs.metrics import read_metrics
from lab.runs.metrics_log import MetricsLog
from lab.runs.summary import FILE, Summary, load_summary, read_summary, write_summary
from lab.training.load import load_config

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from([*Summary.model_fields, "more"])
FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(st.dictionaries(st.text(max_size=20), FINITE, max_size=4), st.integers(0, 2**40), st.text(max_size=40))
def test_a_summary_is_read_as_it_was_written(tmp_path: Path, metrics: dict, steps: int, error: str) -> None:
    summary = Summary(status="failed", softmax="softmax", seed=0, steps=steps, metrics=metrics, error=error)
    write_summary(tmp_path, summary)
    assert load_summary(tmp_path) == summary


@given(JSON | st.fixed_dictionaries({"status": st.just("finished"), "seed": JSON}, optional={"softmax": JSON}))
def test_any_json_as_a_summary_is_a_summary_or_none(tmp_path: Path, content: object) -> None:
    (tmp_path / FILE).write_text(json.dumps(content))
    summary = read_summary(tmp_path)
    assert summary is None or isinstance(summary, Summary)


@given(FIELDS, JSON)
def test_any_value_of_a_field_makes_a_summary_or_none(tmp_path: Path, field: str, value: object) -> None:
    own = {"status": "stopped", "softmax": "softmax", "seed": 0, "epochs": 4}
    (tmp_path / FILE).write_text(json.dumps({**own, field: value}))
    summary = read_summary(tmp_path)
    assert summary is None or str(summary)


@given(st.binary(max_size=200))
def test_any_bytes_as_a_summary_are_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    assert read_summary(tmp_path) is None


@given(st.dictionaries(st.integers(0, 10**6), st.floats(), min_size=1, max_size=6))
def test_metrics_are_read_as_they_were_logged(tmp_path: Path, values: dict[int, float]) -> None:
    log = MetricsLog(tmp_path / "metrics.csv")
    for step, value in values.items():
        log.log_metrics({"loss": value}, step)
    log.save()
    rows = read_metrics(tmp_path / "metrics.csv")
    assert [row["step"] for row in rows] == sorted(values)
    for row in rows:
        logged = values[int(row["step"])]
        assert row["loss"] == logged or (math.isnan(row["loss"]) and math.isnan(logged))


@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: f"step,epoch,loss\n{text}".encode()))
def test_any_bytes_as_metrics_are_rows_or_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(content)
    try:
        rows = read_metrics(path)
    except Exception as error:
        # A damaged file is named by an error of the lab, whichever reader tells it.
        assert type(error).__module__.startswith("lab."), repr(error)
        assert "metrics.csv" in str(error)
    else:
        assert all(isinstance(value, float) for row in rows for value in row.values())


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode) | JSON.map(lambda v: json.dumps(v).encode()))
def test_any_bytes_as_a_config_are_a_config_or_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    try:
        config = load_config(tmp_path)
    except Exception as error:
        assert isinstance(error, LabError) or type(error).__module__.startswith("lab."), repr(error)
        assert "config.yaml" in str(error) and "\n" not in str(error)
    else:
        assert OmegaConf.is_dict(config)


OVERRIDES = (
    st.text(max_size=20)
    | st.tuples(st.sampled_from(["seed", "softmax", "optim.lr", "data", "+a", "~optim"]), st.text(max_size=12)).map(
        "=".join
    )
    | st.text(alphabet="=+~.,[]{}()$:'\"\\ abc01", max_size=12)
)


@settings(max_examples=40)
@given(OVERRIDES)
def test_any_text_as_an_override_composes_or_is_one_sentence(override: str) -> None:
    try:
        composed([override])
    except LabError as problem:
        assert str(problem).strip() and "\n" not in str(problem) and "Traceback" not in str(problem)
    else:
        read_override(override)


@given(st.text(st.characters(exclude_categories=["C", "Z"]) | st.just(" "), min_size=1))
@example("a'b\\")
@example("1e5")
@example("~/runs")
@example("null")
@example("/runs/josé (1)/a,b=c")
def test_a_path_in_quotes_is_read_back(path: str) -> None:
    if "${" not in path:
        assert read_override(f"paths.runs={quoted(path)}").parsed() == path


@pytest.mark.parametrize("value", ["1", "1.5", "true", "null", "[1,2]", "{a:1}", "text"])
def test_an_override_is_read_back_as_typed(value: str) -> None:
    assert read_override(f"key={value}").text == f"key={value}"
