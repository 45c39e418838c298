"""The style of pictures: one look for one softmax, legends that hide no line, axes that can be compared, real fonts."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import LogNorm
from matplotlib.font_manager import fontManager

from lab.callbacks.diagnostics.attention_maps import GOT, AttentionMaps
from lab.config.compose import CONFIGS
from lab.datasets.reasoning import ReasoningData
from lab.models.reasoner import Reasoner
from lab.observation.observe import observe
from lab.plotting.figures import (
    _tell_of_missing_letters,
    bars_by_layer,
    legend_below,
    lines_by_layer,
    maps,
    new_figure,
    same_axes,
    save_figure,
)
from lab.plotting.style import _KNOWN, _fonts, line_style, line_styles, styled


def test_a_softmax_has_one_look_wherever_it_is_drawn() -> None:
    names = [path.stem for path in (CONFIGS / "softmax").glob("*.yaml")]
    assert line_style("softmax") != line_style("norm_softmax")
    assert [style.color for style in line_styles(names)] == [line_style(name).color for name in names]
    assert line_styles(names[::-1])[::-1] == line_styles(names) == [line_style(name) for name in names], (
        "two share a look: add the new one at the end of _KNOWN in lab/plotting/style.py"
    )
    # Rules of one's own have one by their name, today and tomorrow: that of no softmax that the lab knows.
    others = {line_style(name) for name in ("relu", "length_scaled", *map(str, range(200)))}
    assert len(others) == 40 and others.isdisjoint(map(line_style, _KNOWN))
    assert line_style("my.Rule") == line_style("my.Rule") and line_style("MyRule").color.startswith("#")


def test_lines_of_one_softmax_differ_in_their_style_alone() -> None:
    found = line_styles(["softmax"] * 20)
    assert len(set(found)) == 20 and {style.color for style in found} == {line_style("softmax").color}
    assert found[0] == line_style("softmax")


def test_a_column_that_was_left_empty_has_nothing_before_the_moment(recwarn: pytest.WarningsRecorder) -> None:
    table = pd.DataFrame([{"layer": 0, "step": step, "share": math.nan} for step in range(4)])
    lines_by_layer(table, ["share"], "share of attention", moment=2).draw_without_rendering()
    assert not [one for one in recwarn if issubclass(one.category, RuntimeWarning)]


def test_a_curve_of_one_point_is_a_dot_above_one_tick() -> None:
    table = pd.DataFrame([{"layer": i, "step": 10, "share": 0.5} for i in range(2)])
    figure = lines_by_layer(table, ["share"], "share of attention", moment=None)
    assert [line.get_marker() for axes in figure.axes for line in axes.lines] == ["o", "o"]
    axes = figure.axes[-1]
    low, high = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if low <= tick <= high] == [10]
    assert "before any Eureka-moment" not in [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_curve_of_one_point_does_not_narrow_the_axis_that_it_shares() -> None:
    table = pd.DataFrame([{"layer": i, "step": s, "share": 0.5} for i, s in ((0, 0), (1, 0), (1, 9))])
    figure = lines_by_layer(table, ["share"], "share of attention", moment=None)
    assert figure.axes[0].get_xlim()[1] > 9
    assert [axes.lines[0].get_marker() for axes in figure.axes] == ["o", "None"]


def test_a_logarithmic_axis_has_a_dot_for_each_head_and_no_bars() -> None:
    rows = [{"layer": layer, "head": head, "spread": 10.0**head} for layer in range(2) for head in range(3)]
    axes = bars_by_layer(rows, ["spread"], "spread", log=True).axes[0]
    heads, medians, *_ = [line.get_xydata().tolist() for line in axes.lines]
    assert heads == [[layer, 10.0**head] for layer in range(2) for head in range(3)]
    assert medians == [[0, 10], [1, 10]] and not axes.patches
    assert axes.get_ylim()[0] > 0.1, "the values alone make the axis"


def test_error_bars_say_what_they_are_over() -> None:
    rows = [{"layer": 0, "head": head, "share": head / 2} for head in range(2)]
    for shown, told in ((rows, ["mean, standard deviation over heads"]), (rows[:1], [])):
        figure = bars_by_layer(shown, ["share"], "share of attention")
        assert [text.get_text() for legend in figure.legends for text in legend.get_texts()] == told


@pytest.mark.pictures
def test_letters_that_no_font_has_are_told_in_one_sentence(tmp_path: Path, recwarn, capsys) -> None:
    _tell_of_missing_letters.cache_clear()
    figure, axes = new_figure(2, 2)
    axes.set_title("\U000f0000 and \U000f0001")  # letters for private use
    save_figure(figure, tmp_path / "a.png", pdf=True)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and "install the font Noto Sans CJK" in told[0]
    assert not [one for one in recwarn if "Glyph" in str(one.message)]


def test_letters_are_looked_for_in_the_further_fonts_that_are_installed(monkeypatch) -> None:
    monkeypatch.setattr(fontManager, "get_font_names", lambda: ["DejaVu Sans", "Noto Emoji", "Noto Sans CJK JP"])
    _fonts.cache_clear()
    with styled():
        assert matplotlib.rcParams["font.family"] == ["sans-serif", "Noto Sans CJK JP", "Noto Emoji"]
    _fonts.cache_clear()


@pytest.mark.pictures
def test_a_legend_is_below_the_axes_and_fonts_are_in_the_pdf(tmp_path: Path) -> None:
    table = pd.DataFrame([{"layer": i, "step": s, "share": s * i} for i in range(3) for s in range(4)])
    figure = lines_by_layer(table, ["share"], "share of attention", moment=2)
    png, pdf = save_figure(figure, tmp_path / "a.png", pdf=True)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["share", "before any Eureka-moment"]
    lowest = min(axes.get_tightbbox().y0 for axes in figure.axes)
    assert legend.get_window_extent().y1 <= lowest
    # Nothing sticks out of the picture.
    assert (figure.get_tightbbox().min >= 0).all()
    assert png.read_bytes()[:4] == b"\x89PNG"
    # Type 42 is TrueType whole; type 3 is what journals send back.
    fonts = re.findall(rb"/Subtype /(Type\w+|TrueType)", pdf.read_bytes())
    assert b"Type3" not in fonts and b"CIDFontType2" in re.findall(rb"/Subtype /(\w+)", pdf.read_bytes())


def test_figures_side_by_side_have_the_same_axes() -> None:
    figures = []
    for height in (1, 5):
        figure, axes = new_figure(2, 2)
        axes.plot([0, height], [0, height], label="a")
        with styled():
            legend_below(figure)
        figures.append(figure)
    same_axes(figures)
    limits = {(figure.axes[0].get_xlim(), figure.axes[0].get_ylim()) for figure in figures}
    assert len(limits) == 1 and next(iter(limits))[1][1] >= 5


def test_figures_side_by_side_have_the_same_colours() -> None:
    figures, meshes = [], []
    for most in (10, 1000):
        figure, axes = new_figure(2, 2)
        meshes.append(axes.pcolormesh([[1, most]], norm=LogNorm(1, most)))
        axes.fill_between([0, 1], [0, 1])
        figure.colorbar(meshes[-1])
        figures.append(figure)
    same_axes(figures)
    assert {mesh.get_clim() for mesh in meshes} == {(1, 1000)}
    for figure in figures:
        assert figure.axes[1].get_ylim() == pytest.approx((1, 1000))
        # The bar is coloured to its end.
        assert figure.axes[1].dataLim.intervaly == pytest.approx((1, 1000))


@pytest.mark.pictures
def test_the_colour_bar_of_maps_has_its_whole_label_and_an_arrow_only_for_what_is_off_its_scale() -> None:
    flat = np.full((20, 20), 0.2)
    for most, arrow in ((0.200001, "neither"), (0.4, "max")):
        peak = flat.copy()
        peak[0, 0] = most
        figure = maps([flat, peak], ["layer 0", "layer 1"], GOT)
        figure.draw_without_rendering()
        axes: Any = figure.axes[-1]
        assert axes._colorbar.extend == arrow
        label = axes.yaxis.label.get_window_extent()
        assert figure.bbox.y0 <= label.y0 and label.y1 <= figure.bbox.y1


def test_attention_maps_name_the_tokens() -> None:
    data = ReasoningData(numbers=3)
    data.setup("fit")
    model = Reasoner(tokens=4, context=5, num_classes=3)
    (found,) = observe(model, data, [AttentionMaps("unused")], torch.device("cpu"))
    axes = found.figures["heads"]().axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == [*"abcd", "="]
    assert [label.get_text() for label in axes.get_yticklabels()] == [*"abcd", "="]
