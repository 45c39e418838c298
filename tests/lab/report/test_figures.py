"""Pictures and charts of a report show what their runs have logged, and tell their settings apart."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from matplotlib.colors import to_rgb
from report_runs import EPOCHS

from lab.plotting.style import line_styles
from lab.report.assemble import assemble
from lab.report.charts import _dash, curves_chart, packed, survival_chart
from lab.report.figures import (
    _rate,
    curves,
    gradient_shares,
    gradients,
    guides,
    line_styles_of,
    rate_grid,
    survival,
)
from lab.report.gather import gather
from lab.report.make import report
from lab.report.settings import settings
from lab.report.titles import panel_title, told_apart
from lab.runs.summary import Eureka
from scripts import curves as curves_script
from scripts.curves import drawn as drawn_curves


def test_panels_of_curves_share_their_axis_of_epochs(write, tmp_path: Path) -> None:
    write(0, 3, softmax="norm_softmax", epochs=5)
    write(0, None, epochs=EPOCHS)
    for quantity in ("accuracy", "loss"):
        picture = curves(settings(gather(tmp_path).runs), quantity, aligned=False)
        assert picture is not None and len(picture.axes) == 2
        assert len({panel.get_xlim() for panel in picture.axes}) == 1 and picture.axes[0].get_xlim()[1] >= EPOCHS


def test_a_learning_rate_that_is_no_number_is_in_no_grid(write, tmp_path: Path) -> None:
    for seed, rate in enumerate(("high", [1], 0.1)):
        path = write(0, 12, f"optim.lr={seed + 1}") / "config.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"optim": {"lr": rate}}))
    assert rate_grid(settings(gather(tmp_path).runs))[1] == [(0.1, None)]


def test_a_run_in_which_nobody_looked_for_a_moment_is_in_no_grid(write, tmp_path: Path) -> None:
    for seed, rate in enumerate(("1e-3", "2e-3", "1e-3")):
        path = write(seed, 12, f"optim.lr={rate}") / "summary.json"
        if seed == 2:
            path.write_text(json.dumps(json.loads(path.read_text()) | {"eureka": {"happened": None}}))
    grid, _ = rate_grid(settings(gather(tmp_path).runs))
    assert [cell for cells in grid.values() for cell in cells.values()] == [(1, 1), (1, 1)]


def test_settings_at_one_rate_are_rows_of_their_own(write, tmp_path: Path) -> None:
    for after in (3, 5):
        for seed in range(2):
            moment = 12 if after == 3 else None
            write(seed, moment, f"callbacks.eureka.stop_after={after}", "optim.lr=1e-3")
            write(seed, moment, f"callbacks.eureka.stop_after={after}", "optim.lr=2e-3")
    grid, rates = rate_grid(settings(gather(tmp_path).runs))
    assert len(rates) == 2 and sorted(cell for cells in grid.values() for cell in cells.values()) == [
        (0, 2), (0, 2), (2, 2), (2, 2),
    ]  # fmt: skip


def test_a_title_keeps_its_end_where_it_is_shortened() -> None:
    text = "norm_softmax, data.train_share=0.4, model.hidden=256, optim.lr=0.002, softmax.tau=1.5 (3 seeds)"
    shown = panel_title(text).split("\n")
    assert len(shown) == 3 and shown[0].startswith("norm_softmax") and shown[1].startswith("… ")
    assert shown[-1].endswith("softmax.tau=1.5 (3 seeds)")
    assert panel_title("softmax (3 seeds)") == "softmax (3 seeds)"


def test_long_words_side_by_side_do_not_overlap_above_their_panels(write, tmp_path: Path) -> None:
    for softmax, letter in (("softmax", "a"), ("norm_softmax", "o")):
        path = write(0, 12, softmax=softmax, epochs=2) / "summary.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"softmax": "my_own_softmax_" + letter * 65}))
    figure = curves(settings(gather(tmp_path).runs), "accuracy", aligned=False)
    assert figure is not None
    figure.draw_without_rendering()
    left, right = (axes.title.get_window_extent() for axes in figure.axes)
    assert left.x1 < right.x0


def test_curves_of_runs_tell_in_a_legend_that_fits_what_was_looked_for(write, tmp_path: Path) -> None:
    folders = [write(0, 12, "optim.lr=1e-3"), write(0, None, "optim.lr=2e-3", status="stopped", epochs=20)]
    folders += [write(0, None, "optim.lr=3e-3"), write(0, None, "optim.lr=4e-3", "callbacks.eureka.stop_after=3")]
    (unwatched := folders[2] / "summary.json").write_text(
        json.dumps(json.loads(unwatched.read_text()) | {"eureka": {"happened": None}})
    )
    folders.append(write(0, None, "+row=resnet9", experiment="main_task"))
    figure = drawn_curves(folders, gradients=False)
    labels = [text.get_text().replace("-\n", "-").replace("\n", " ") for text in figure.legends[0].get_texts()]
    assert [label for label in labels if "optim.lr" in label] == [
        "reasoning: softmax, seed 0, optim.lr=1e-3: Eureka-moment at epoch 12",
        "reasoning: softmax, seed 0, optim.lr=2e-3: no Eureka-moment by epoch 20",
        "reasoning: softmax, seed 0, optim.lr=3e-3",
        "reasoning: softmax, seed 0, optim.lr=4e-3, callbacks.eureka.stop_after=3: no Eureka-moment",
    ]
    assert sum(label.startswith("main_task: resnet9, seed 0") for label in labels) == 1  # its row: it has no softmax
    seeds = [write(seed, 12, "optim.lr=1e-3", root=tmp_path / "seeds") for seed in (0, 1)]
    pair = ("softmax", "norm_softmax")
    others = [write(0, 12, "optim.lr=2e-3", root=tmp_path / "seeds", softmax=one) for one in pair]
    told = drawn_curves([*seeds, *others], gradients=False)
    legend = [text.get_text().replace("\n", "") for text in told.legends[0].get_texts()]
    # A run that no other shares its softmax with says what it was given of that, too.
    for name in ("softmax, seed 1, optim.lr=1e-3", "norm_softmax, seed 0, optim.lr=2e-3"):
        assert f"{name}: Eureka-moment at epoch 12" in legend
    twins = drawn_curves([write(0, 12), write(0, 12, root=tmp_path / "again")], gradients=False)
    paths = [text.get_text().replace("\n", "") for text in twins.legends[0].get_texts()[:2]]
    assert paths[0] != paths[1] and not any(str(tmp_path) in label for label in (*labels, *paths))
    figure.draw_without_rendering()
    box, room = figure.legends[0].get_window_extent(), figure.bbox
    assert room.x0 <= box.x0 and box.x1 <= room.x1


def test_titles_keep_what_tells_their_settings_apart() -> None:
    long = "callbacks.eureka.stop_after=200, optim.lr={}, optim.warmup_epochs=5, optim.weight_decay=0.5, softmax.tau={}"
    names = ["softmax", *(f"softmax, {long.format(rate, tau)}" for rate in (0.1, 0.2) for tau in (1, 2))]
    grid = [f"softmax, optim.lr={rate}, softmax.tau={tau}" for rate in (0.1, 0.2) for tau in (1, 2)]
    assert told_apart(names) == ["softmax", *grid]
    assert told_apart(grid) == grid, "nothing is left out of names that fit"
    some = "norm_softmax, model.width=32, optim.lr=0.002, optim.weight_decay=0.5, softmax.tau=2"
    other = "norm_softmax, model.width=32, optim.lr=0.001, softmax.tau=2"
    both = ["norm_softmax, optim.lr=0.002, optim.weight_decay=0.5", "norm_softmax, optim.lr=0.001"]
    assert told_apart([some, other]) == both, "a rate that differs stays, though the decay tells them apart"
    drawn = "norm_softmax, optim.lr=0.000168833754{}, optim.weight_decay=1.030622068128365, softmax.tau={}"
    near = [f"norm_softmax, optim.lr=0.000168833754{digit}, softmax.tau={digit}" for digit in (1, 9)]
    assert told_apart([drawn.format(1, 1), drawn.format(9, 9)]) == near
    apart = told_apart([drawn.format(1, 1), drawn.format(9, 9).replace("0.00016", "0.00026")])
    assert apart == [f"norm_softmax, optim.lr=0.000{digit}688, softmax.tau={own}" for digit, own in ((1, 1), (2, 9))]


def test_settings_in_several_figures_have_titles_of_their_own(write, tmp_path: Path) -> None:
    """A figure has twelve panels: an option may be the same in all of one figure, and another one in the next."""
    long = "optim.warmup_epochs=4", "optim.weight_decay=0.4", "callbacks.eureka.stop_after=200"
    write(0, None, epochs=2)
    for place in range(15):
        write(0, None, *long, f"optim.lr={1e-3 + 1e-4 * (place % 11):g}", f"data.numbers={4 + place // 11}", epochs=2)
    (section,) = assemble([gather(tmp_path)]).sections
    titles = [
        axes.get_title()
        for drawing in section.drawings
        if drawing.name.startswith("reasoning_loss_by_epoch")
        for axes in drawing.figure.axes
        if axes.get_title()
    ]
    assert len(titles) == len(set(titles)) == 16


def test_runs_with_some_gradients_alone_are_not_drawn(write, tmp_path: Path) -> None:
    path = write(0, 12) / "metrics.csv"
    path.write_text(path.read_text().replace("gradient/k/layer_0", "gradient/x/layer_0"))
    own = settings(gather(tmp_path).runs)
    assert gradients(own) is None and gradient_shares(own) == ""


def test_a_run_of_one_validation_is_a_dot_and_has_no_median_gradient(write, tmp_path: Path) -> None:
    write(0, None, epochs=1)
    own = settings(gather(tmp_path).runs)
    figure = curves(own, "accuracy", aligned=False)
    assert figure is not None
    assert [line.get_xydata().tolist() for line in figure.axes[0].lines if len(line.get_xydata()) == 1] == [[[1, 50]]]
    assert gradients(own) is not None and gradient_shares(own) == ""


def test_curves_say_in_one_sentence_what_they_cannot_draw(write, tmp_path: Path, monkeypatch, capsys) -> None:
    folder, out = write(0, 12), tmp_path / "curves.png"
    monkeypatch.setattr("sys.argv", ["curves", str(folder), "--out", str(out)])
    curves_script.main()
    assert out.exists()
    monkeypatch.setattr("sys.argv", ["curves", str(tmp_path), "--out", str(out)])
    with pytest.raises(SystemExit, match="1"):
        curves_script.main()
    assert f"{tmp_path} holds no run: name one below it, such as {folder}" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["curves", str(folder), "--out", str(out)])
    (folder / "metrics.csv").write_text("step,epoch,val/accuracy\n1,0\n")
    with pytest.raises(SystemExit, match="1"):
        curves_script.main()
    assert "a line has 2 fields" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["curves", str(folder), str(folder), "--out", str(out), "--gradients"])
    with pytest.raises(SystemExit, match="2"):
        curves_script.main()
    assert "--gradients draws one run" in capsys.readouterr().err


def test_many_seeds_are_pale_so_that_their_median_is_seen(write, tmp_path: Path) -> None:
    for seed in range(32):
        write(seed, 2, epochs=3)
    figure = curves(settings(gather(tmp_path).runs), "accuracy", aligned=False)
    assert figure is not None and figure.axes[0].collections[0].get_alpha() == 0.25


def test_survival_curves_that_coincide_are_all_seen(write, tmp_path: Path) -> None:
    for softmax in ("softmax", "norm_softmax"):
        write(0, None, softmax=softmax)
    figure = survival(settings(gather(tmp_path).runs))
    assert figure is not None
    below, above = (line for line in figure.axes[0].lines if line.get_drawstyle() == "steps-post")
    assert np.array_equal(below.get_xydata(), above.get_xydata())
    assert below.get_linewidth() > above.get_linewidth() + 1


def test_numbers_at_risk_are_dark_and_stand_behind_a_piece_of_their_line(write, tmp_path: Path) -> None:
    for rate in ("1e-3", "2e-3", "3e-3"):
        write(0, 20, f"optim.lr={rate}")
        write(1, None, f"optim.lr={rate}")
    found = settings(gather(tmp_path).runs)
    figure = survival(found)
    assert figure is not None
    figure.draw_without_rendering()
    (axes,) = figure.axes
    assert "below: seeds at risk just before it" in axes.get_xlabel()
    numbers: Any = axes.texts
    assert {to_rgb(number.get_color()) for number in numbers} == {(0, 0, 0)}
    rows: dict[float, list[Any]] = {}
    for number in numbers:
        rows.setdefault(number.get_window_extent().y0, []).append(number)
    # Just before its moment, at 20, a seed has not had it.
    told = [[f"{number.xy[0]:g}: {number.get_text()}" for number in row] for row in rows.values()]
    assert [row[::2] for row in told] == [["0: 2", "20: 2", "40: 1"]] * 3
    pieces = [line for line in axes.lines if not line.get_clip_on()]
    assert [one.get_linestyle() for one in pieces] == [style.line for style in line_styles_of(found).values()]
    for piece, (first, *_) in zip(pieces, rows.values(), strict=True):
        line, text = piece.get_window_extent(), first.get_window_extent()
        assert line.x0 > 0 and line.x1 < text.x0 and text.y0 < line.y0 <= line.y1 < text.y1
    # On an equal line of the same colour, the dashes of another one are seen by their gaps.
    gaps = [line.get_gapcolor() for line in axes.lines if line.get_drawstyle() == "steps-post"]
    assert gaps == [None, "white", "white"]


def test_the_survival_bands_are_of_the_confidence_asked_for(write, tmp_path: Path) -> None:
    for seed in range(5):
        write(seed, 10 + seed if seed else None)
    found = settings(gather(tmp_path).runs)

    def width(confidence: float) -> float:
        figure = survival(found, confidence)
        assert figure is not None
        band, *_ = figure.axes[0].collections
        corners = band.get_paths()[0].vertices
        return float(np.ptp(corners[:, 1]))

    assert width(0.5) < width(0.95)


def test_rates_are_written_with_the_digits_they_have() -> None:
    assert [_rate((value, None)) for value in (1.5e-3, 2e-3, 2.4e-3, 1.0)] == ["1.5e-3", "2e-3", "2.4e-3", "1e0"]
    assert _rate((1e-3, 1e-6)) == "1e-3 to 1e-6"


def test_a_chart_says_nothing_of_an_interval_before_the_first_moment(write, tmp_path: Path) -> None:
    for seed in range(3):
        write(seed, None)
        write(seed, 12 + seed, softmax="norm_softmax")
    found = settings(gather(tmp_path).runs)
    chart = survival_chart(found, 0.95, "Eureka-moment", line_styles_of(found))
    assert chart is not None
    never, soon = (
        {name: unpacked(group["middle"][name]) for name in ("y", "low", "high")} for group in chart["groups"]
    )
    assert never["y"].tolist() == [1, 1] and np.isnan(never["low"]).all() and np.isnan(never["high"]).all()
    assert soon["y"] == pytest.approx([1, 2 / 3, 1 / 3, 0, 0], abs=1e-3)
    assert np.isnan(soon["low"]).tolist() == [True, False, False, False, False]


@pytest.mark.parametrize("spike", [0.9, 4321.0, 2.5e12])
def test_a_spike_takes_no_digits_from_the_other_values_of_a_chart(spike: float) -> None:
    values = np.linspace(0.2, 0.7, 200)
    values[50], values[60] = spike, np.nan
    assert unpacked(packed(values)) == pytest.approx(values, rel=1e-4, abs=0, nan_ok=True)


def test_settings_of_one_softmax_have_lines_that_differ() -> None:
    found = [_dash(style) for style in line_styles(["softmax"] * 12)]
    assert len({tuple(dash) for dash in found}) == 12 and found[0] == []


def unpacked(values: dict) -> np.ndarray:
    """Numbers of a chart, as its page reads them."""
    if values.get("wide"):
        return np.frombuffer(base64.b64decode(values["data"]), "<f4").astype(float)
    numbers = np.frombuffer(base64.b64decode(values["data"]), "<u2").astype(float)
    return np.where(numbers == 65535, np.nan, values["low"] + (values["high"] - values["low"]) * numbers / 65534)


def test_the_plateau_is_drawn_in_curves_of_the_accuracy_that_it_is_of() -> None:
    def drawn(
        *priors: float | None, metric: str = "val/accuracy", quantity: str = "accuracy"
    ) -> list[tuple[float, str, str]]:
        told = [Eureka(metric=metric, threshold=0.7, prior_accuracy=prior, prior_loss=1.2) for prior in priors]
        runs: Any = [SimpleNamespace(summary=SimpleNamespace(eureka=one)) for one in told]
        return [guide for guide in guides(runs, quantity) if guide[1] == "--"]

    assert drawn(0.55, 0.55, None) == [(0.55, "--", "plateau: the prior p(z) alone")]
    assert drawn(0.55, 0.65) == [(pytest.approx(0.6), "--", "plateau: the prior p(z) alone, mean over seeds")]
    assert not drawn(None) and not drawn(0.55, metric="val/accuracy_top_right")
    assert drawn(None, quantity="loss") == [(1.2, "--", "plateau: the prior alone")]


def test_a_chart_has_the_lines_that_its_settings_share_whatever_their_seeds(write, tmp_path: Path) -> None:
    """The mean of three thresholds of 0.7 is rounded; plateaus differ a little by seed."""

    def lines(*priors: float) -> dict[str, float]:
        for place, prior in enumerate(priors):
            folder = write(place % 3, 12, softmax="norm_softmax" if place < 3 else "softmax")
            told = json.loads((folder / "summary.json").read_text())
            told["eureka"]["prior_accuracy"] = prior
            (folder / "summary.json").write_text(json.dumps(told))
        own = settings(gather(tmp_path).runs)
        chart = curves_chart(own, "accuracy", line_styles_of(own))
        assert chart is not None
        return {guide["name"]: guide["y"] for guide in chart["guides"]}

    shared = lines(0.58, 0.585, 0.59, 0.58, 0.58)
    assert shared.pop("threshold of the moment") == pytest.approx(70)
    assert shared == {"plateau: the prior p(z) alone, mean over seeds": pytest.approx(58.3)}
    assert list(lines(0.58, 0.58, 0.58, 0.52, 0.52)) == ["threshold of the moment"]


def test_curves_of_runs_of_one_task_have_its_plateau(write, tmp_path: Path) -> None:
    folders = [write(0, 12, softmax="norm_softmax"), write(1, 12), write(1, 12, "data.numbers=5")]
    for folder, prior in zip(folders, (0.55, 0.65, 0.3), strict=True):
        told = json.loads((folder / "summary.json").read_text())
        told["eureka"]["prior_accuracy"] = prior
        (folder / "summary.json").write_text(json.dumps(told))

    def plateaus(folders: list[Path]) -> list[str]:
        legend = drawn_curves(folders, gradients=False).legends[0].get_texts()
        return [label for text in legend if (label := text.get_text()).startswith("plateau")]

    assert plateaus(folders[:1]) == ["plateau: the prior p(z) alone (55.0%)"]
    assert plateaus(folders[:2]) == ["plateau: the prior p(z) alone, mean over seeds (60.0%)"]
    assert plateaus(folders) == []


def test_a_caption_says_in_numbers_what_its_runs_have_logged(write, tmp_path: Path) -> None:
    write(0, 12)
    swapped = write(0, None, softmax="norm_softmax") / "metrics.csv"  # W_K above W_V
    swapped.write_text(swapped.read_text().replace(",1e-3,2e-3,3e-2,", ",6e-2,2e-3,3e-2,"))
    (section,) = assemble([gather(tmp_path)]).sections
    drawn = {drawing.name: drawing for drawing in section.drawings}
    gradients = drawn["reasoning_gradients"]
    assert gradients.says.endswith("of W_V's: softmax W_Q 0.067, W_K 0.033; norm_softmax W_Q 0.067, W_K 2.")
    assert "much less" not in gradients.reading
    _, out = report([tmp_path], pictures_mib=0)
    for page in ("index.html", "report.md"):
        assert "W_Q 0.067" in (out / page).read_text()
