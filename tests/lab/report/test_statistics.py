"""Statistics against worked examples and SciPy."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import fisher_exact, logrank, ttest_1samp, ttest_rel

from lab.console import LabError
from lab.report.outcomes import change_times, times
from lab.report.records import Record
from lab.report.statistics import (
    Reach,
    Validations,
    eureka_ratio,
    fisher,
    holm,
    mean_over_seeds,
    paired,
    paired_ratios,
    reach,
)
from lab.report.survival import Times, _log_rank_statistic, log_rank, median_time, no_moment_yet, times_of
from lab.runs.summary import Summary
from scripts import survival

# Freireich et al. 1963, weeks of remission under 6-MP and placebo: the textbook example (Kleinbaum and Klein, ch. 2).
SIX_MP = Times((6, 6, 6, 7, 10, 13, 16, 22, 23), (6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35))
PLACEBO = Times((1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23), ())


def test_kaplan_meier_is_the_textbooks() -> None:
    curve = no_moment_yet(SIX_MP)
    assert curve.epochs.tolist() == [6, 7, 10, 13, 16, 22, 23]
    assert curve.share == pytest.approx([0.8571, 0.8067, 0.7529, 0.6902, 0.6275, 0.5378, 0.4482], abs=1e-4)
    assert (curve.low < curve.share).all() and (curve.share < curve.high).all()
    assert (curve.low[0], curve.high[0]) == pytest.approx((0.6197, 0.9516), abs=1e-3)
    assert curve.end == 35


def test_medians_and_log_rank_are_the_textbooks() -> None:
    assert median_time(SIX_MP).epoch == 23
    assert median_time(SIX_MP).high == math.inf
    placebo = median_time(PLACEBO)
    assert (placebo.epoch, placebo.low, placebo.high) == (8, 4, 11)
    assert str(placebo) == "8 (4 to 11)"
    # At 35 weeks it is known of 10 of 21 patients alone.
    assert str(median_time(SIX_MP)).endswith("to later than 34)")
    assert str(median_time(times_of([None, None], [30, 40]))) == "later than 40"
    # Chi-square 16.79 with one degree of freedom, which 4 in 100,000 exceed by chance.
    assert 5e-5 <= log_rank(SIX_MP, PLACEBO) + 1e-8 < 3e-4


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        # By hand: one seed of eleven has a moment; two of five have, one pair of ten; 3 of 3 beside 0 of 3.
        (Times((40,), ()), Times((), (200,) * 10), 1 / 11),
        (Times((40, 50), ()), Times((), (200,) * 3), 1 / 10),
        (Times((6, 7, 12), ()), Times((), (20,) * 3), 2 / 20),
    ],
)
def test_few_seeds_have_the_p_value_of_their_permutations(one: Times, other: Times, expected: float) -> None:
    assert log_rank(one, other) == log_rank(other, one) == pytest.approx(expected)


def test_few_moments_on_many_seeds_have_it_too() -> None:
    """The normal approximation gives 0.002 and 0.004."""
    # The one moment of 220 runs is of the smaller setting in 20 of 220 cases, both of 150 in 30 x 29 of 150 x 149.
    assert log_rank(Times((3,), (100,) * 19), Times((), (100,) * 200)) == pytest.approx(20 / 220, abs=0.006)
    assert log_rank(Times((3, 4), (9,) * 28), Times((), (9,) * 120)) == pytest.approx(30 * 29 / 150 / 149, abs=0.004)


def test_permutations_agree_with_the_normal_limit_where_both_serve() -> None:
    early, late = Times(tuple(range(1, 16)), (20,) * 3), Times(tuple(range(4, 16)), (20,) * 7)
    drawn = log_rank(early, late)  # of 4e10 ways
    assert log_rank(early, late) == log_rank(late, early) == drawn
    assert drawn == pytest.approx(logrank(early.censored, late.censored).pvalue, rel=0.15)
    groups = (SIX_MP.moments, SIX_MP.ends, PLACEBO.moments)
    had = np.repeat([True, False, True], [len(group) for group in groups])
    (statistic,) = _log_rank_statistic(np.concatenate(groups), had, np.arange(21)[None])
    assert statistic == pytest.approx(16.79, abs=5e-3)


def test_a_median_is_not_later_than_what_one_seed_alone_was_watched_for() -> None:
    assert str(median_time(Times((), (10.0,) * 9 + (1000.0,)))) == "later than 10"
    assert str(median_time(Times((5.0,) * 4, (10.0,) * 3 + (60.0,) * 3))) == "later than 60 (5 to later than 60)"


def test_runs_without_any_moment_are_censored_not_missing() -> None:
    none = times_of([None, None], [300, 300])
    assert none == Times((), (300.0, 300.0))
    assert len(no_moment_yet(none).epochs) == 0
    assert median_time(none).epoch == math.inf
    assert log_rank(none, none) == 1.0
    # The mean over successes is lower for the setting that fails more often; the median is not.
    often_stuck = times_of([10, None, None, None], [300] * 4)
    always = times_of([40, 50, 60, 70], [300] * 4)
    assert median_time(often_stuck).epoch == math.inf
    assert median_time(always).epoch == 50
    every = no_moment_yet(always)
    assert every.share[-1] == 0 and every.low[-1] == 0
    assert every.high[-1] == pytest.approx(1 - 0.025 ** (1 / 4))  # Clopper-Pearson of 0 of 4
    with pytest.raises(ValueError, match="one run or more"):
        Times((), ())


def test_ratios_are_compared_by_fishers_exact_test() -> None:
    assert fisher((7, 10), (10, 10)) == pytest.approx(fisher_exact([[7, 3], [10, 0]]).pvalue)
    # The lady tasting tea.
    assert fisher((4, 4), (0, 4)) == pytest.approx(2 / 70)
    with pytest.raises(ValueError, match="one seed or more"):
        fisher((1, 0), (1, 1))
    assert str(eureka_ratio(7, 10)) == "7/10 (40% to 89%)"


def test_holms_correction_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == holm([1, 1.0]) == [1.0, 1.0]
    assert holm([]) == []
    assert holm([None, 0.04, None, 0.03]) == [None, 0.06, None, 0.06]  # as if the others alone stood there


def test_paired_comparison_takes_the_seeds_that_both_have() -> None:
    one = {0: 0.90, 1: 0.85, 2: 0.95, 7: 0.2}
    other = {0: 0.80, 1: 0.80, 2: 0.88, 9: 0.9}
    found = paired(one, other)
    expected = ttest_rel([0.90, 0.85, 0.95], [0.80, 0.80, 0.88])
    assert (found.seeds, found.p) == (3, pytest.approx(expected.pvalue))
    assert found.difference == pytest.approx(0.22 / 3)
    for confidence in (0.5, 0.95):
        found, interval = paired(one, other, confidence), expected.confidence_interval(confidence)
        assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert paired({0: 1.0, 1: 1.0}, {0: 1.0, 1: 1.0}).p == 1.0
    # Two seeds, 55 % against 100 % on both: without spread there is nothing that a t-test could say.
    assert paired({0: 1.0, 1: 1.0}, {0: 0.55, 1: 0.55}).p is None
    # Nor where all that spreads is rounding: 29 against 28 of 100, and 30 against 29.
    found = paired({0: 100 * 0.29, 1: 100 * 0.30}, {0: 100 * 0.28, 1: 100 * 0.29})
    assert found.p is None and found.difference == pytest.approx(1)
    with pytest.raises(ValueError, match="two seeds in both"):
        paired({0: 1.0}, {0: 1.0, 1: 1.0})


def test_paired_ratios_are_mcnemars_with_newcombes_interval() -> None:
    one = dict.fromkeys(range(10), True)
    other = {seed: seed < 4 for seed in range(12)}
    found = paired_ratios(one, other)
    assert (found.gained, found.lost, found.pairs, found.difference) == (6, 0, 10, pytest.approx(0.6))
    assert found.p == pytest.approx(2 / 2**6)
    # Without a correlation the interval is that of two independent ratios (Newcombe 1998b, method 10).
    all_of, four = eureka_ratio(10, 10), eureka_ratio(4, 10)
    assert found.low == pytest.approx(0.6 - math.hypot(1 - all_of.low, four.high - 0.4))
    assert found.high == pytest.approx(0.6 + math.hypot(all_of.high - 1, 0.4 - four.low))
    mirrored = paired_ratios(other, one)
    assert (mirrored.low, mirrored.high) == (pytest.approx(-found.high), pytest.approx(-found.low))
    # Equal pair by pair: a correlation of (6 * 4 - 10 / 2) / 24 narrows the interval.
    half = {seed: seed < 6 for seed in range(10)}
    same, ratio = paired_ratios(half, half), eureka_ratio(6, 10)
    below, above, phi = 0.6 - ratio.low, ratio.high - 0.6, 19 / 24
    assert (same.difference, same.p) == (0, 1)
    assert same.high == pytest.approx(math.sqrt(above**2 - 2 * phi * above * below + below**2))
    with pytest.raises(ValueError, match="got none"):
        paired_ratios(one, {})
    # Newcombe 1998b, Table II: 36 pairs with both, 12 and 2 with one of them, none with neither.
    published = paired_ratios(
        {pair: pair < 48 for pair in range(50)}, {pair: not 36 <= pair < 48 for pair in range(50)}
    )
    assert (published.gained, published.lost, published.difference) == (12, 2, pytest.approx(0.2))
    assert (published.low, published.high) == (pytest.approx(0.0569, abs=5e-5), pytest.approx(0.3404, abs=5e-5))


def validated(*runs: list[float], first: int = 1) -> list[Validations]:
    """Runs that are validated after each epoch, from the ``first`` on; their moment is above 0.7."""
    return [Validations(range(first, first + len(run)), run, any(value > 0.7 for value in run)) for run in runs]


def test_reach_is_table_4s() -> None:
    baseline = validated([0.5, 0.5, 0.8, 0.9], [0.5, 0.5, 0.5, 0.5], [0.5, 0.86, 0.9, 0.9])
    quick = validated([0.5, 0.9], [0.9, 0.9], [0.5, 0.5])
    # The goal is 95 % of 90 %; the baseline gets there after 4 and 2 epochs, the other after 2 and 1.
    found = reach(quick, baseline)
    assert (found.reached, found.stayed, found.runs) == (2, 2, 3)
    # There at its best epoch, but not at its last one.
    assert reach(validated([0.5, 0.9, 0.6]), baseline).ratio_95 == {"any epoch": "1/1", "last epoch": "0/1"}
    assert found.percent_of_steps == pytest.approx(100 * 1.5 / 3)
    assert reach(baseline, baseline).percent_of_steps == pytest.approx(100)
    assert reach(quick, validated([0.5, 0.5])).percent_of_steps is None
    # Of a run whose first rows are lost, epochs count as they are written.
    assert reach(validated([0.5, 0.9], first=3), validated([0.5, 0.5, 0.5, 0.9])).percent_of_steps == 100
    # A moment is what the run's summary says: one that its threshold just missed is none.
    assert reach(quick, [Validations([1, 2], [0.5, 0.71], False)]).percent_of_steps is None


def test_edges_of_survival_that_rounding_and_ties_make() -> None:
    # Twelve of twenty-four seeds by epoch 12, the last censored: half is reached at 12, though products round.
    assert median_time(times_of([*range(1, 24), None], [30] * 24)).epoch == 12
    assert log_rank(Times((3, 3), ()), Times((3, 3), ())) == 1.0
    assert reach(validated([], [0.9]), validated([0.9])).reached == 1


def test_a_median_s_interval_ends_no_earlier_than_it_begins() -> None:
    # Five runs lie on one side of the median by chance alone in 2 of 32 cases, which is more than 5 %.
    assert str(median_time(Times((10.0, 20.0, 30.0), (50.0,) * 2))) == "30 (too few seeds for an interval)"
    assert str(median_time(Times((10.0, 20.0, 30.0), (50.0,) * 2), 0.9)) == "30 (10 to later than 50)"
    # Runs that ended before any moment tell nothing of the median.
    assert str(median_time(Times((10.0, 20.0), (5.0,) * 9))) == "10 (too few seeds for an interval)"
    assert str(median_time(Times((10.0,), (40.0,) * 2 + (50.0, 60.0, 70.0)))) == "later than 60 (10 to later than 60)"


@pytest.mark.parametrize(
    ("moments", "ends", "told"),
    [
        ((20.0,) * 1000, (), "20 (20 to 20)"),
        ((20.0,) * 12, (), "20 (20 to 20)"),
        ((20.0,) * 12, (40.0,), "20 (20 to 20)"),
        ((10.0,) * 300 + (20.0,) * 700, (), "20 (20 to 20)"),
        # The order statistics of six: 1 - 2 / 2^6 = 96.9 %.
        (tuple(map(float, range(1, 7))), (), "3 (1 to 6)"),
    ],
)
def test_a_median_s_interval_ends_where_the_last_seed_has_had_its_moment(
    moments: tuple[float, ...], ends: tuple[float, ...], told: str
) -> None:
    assert str(median_time(Times(moments, ends))) == told


def test_a_ratio_of_many_seeds_has_an_interval_that_shows() -> None:
    assert str(eureka_ratio(0, 1000)) == "0/1000 (0.0% to 0.4%)"
    assert str(eureka_ratio(1000, 1000)) == "1000/1000 (99.6% to 100.0%)"
    assert str(eureka_ratio(5, 10)) == "5/10 (24% to 76%)"


def test_a_run_exactly_at_the_goal_reaches_it() -> None:
    """Curves are read as float32, in which 0.95 is less."""
    baseline, run = Validations([10], [1.0], True), Validations([10], [float(np.float32(0.95))], True)
    assert reach([run], [baseline]) == Reach(100.0, 1, 1, 1)


def test_reach_takes_arrays_and_series_and_refuses_what_does_not_pair() -> None:
    lists = [Validations([1, 2], [0.1, 0.9], True)]
    arrays = [Validations(np.array([1, 2]), pd.Series([0.1, 0.9], index=[7, 8]), True)]
    assert reach(arrays, arrays) == reach(lists, lists) == Reach(100.0, 1, 1, 1)
    with pytest.raises(ValueError, match="each accuracy has an epoch, got 3 and 2"):
        reach([Validations([1, 2], [0.1, 0.9, 0.95], True)], lists)


def test_a_mean_has_students_interval_and_keeps_to_its_bounds() -> None:
    # SciPy's own interval of the same sample, and the papers' standard deviation (divided by n).
    values = [89.1, 90.4, 88.7, 91.0]
    found = mean_over_seeds(values)
    expected = ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert (found.value, found.std, found.seeds) == (pytest.approx(89.8), pytest.approx(statistics.pstdev(values)), 4)
    assert mean_over_seeds([99.0, 90.0], bounds=(0, 100)).high == 100
    assert (alike := mean_over_seeds([4.0, 4.0, 4.0])).low is None and alike.seeds == 3, "no width is no interval"
    one = mean_over_seeds([90.16])
    assert (one.value, one.std, one.low, one.high) == (90.16, 0.0, None, None)
    with pytest.raises(ValueError, match="one seed or more"):
        mean_over_seeds([])


def test_survival_of_a_report_s_table_leaves_out_what_the_report_does(monkeypatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(survival, "survival_figure", drawn.extend)
    rows = [("a", "reasoning", 3, True), ("a", "reasoning", None, False), ("a", "main_task", None, True)]
    names = ("setting", "experiment", "moment_epoch", "looked")
    survival.figure(pd.DataFrame([{**dict(zip(names, row, strict=True)), "epochs": 9} for row in rows]))
    assert [(line.name, line.times.moments, line.times.ends) for line in drawn] == [
        ("a, reasoning", (3,), ()),
        ("a, main_task", (), (9,)),
    ]
    drawn.clear()
    failed = {"setting": ["a", "a", "b"], "moment_epoch": [3, None, None], "watched_until": [9, 0, 0]}
    survival.figure(pd.DataFrame(failed))  # before their first validation
    assert [(line.name, line.times.moments, line.times.ends) for line in drawn] == [("a", (3,), ())]


def test_survival_of_a_table_takes_the_last_validation_where_it_is_told(monkeypatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(survival, "survival_figure", drawn.extend)
    rows = pd.DataFrame({"setting": ["a"], "moment_epoch": [None], "epochs": [57], "validated_epochs": [50]})
    survival.figure(rows)
    survival.figure(rows.assign(watched_until=60))  # of a run that diverged
    survival.figure(rows, end="epochs")
    assert [line.times.ends for line in drawn] == [(50,), (60,), (57,)]


@pytest.mark.parametrize(
    ("only", "told"),
    [
        ("setting", "--only setting is incomplete: write COLUMN=VALUE"),
        ("sett=a", "is called 'sett': there are setting, moment_epoch, epochs"),
        ("setting=b", "no row of"),
    ],
)
def test_rows_of_a_survival_table_that_are_not_there_are_told(
    only: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pd.DataFrame({"setting": ["a"], "moment_epoch": [3], "epochs": [9]}).to_csv(tmp_path / "runs.csv", index=False)
    typed = [str(tmp_path / "runs.csv"), "--only", only, "--out", str(tmp_path / "a.png")]
    monkeypatch.setattr("sys.argv", ["survival", *typed])
    with pytest.raises(SystemExit):
        survival.main()
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(("content", "why"), [("", "No columns to parse from file"), (None, "No such file")])
def test_what_is_no_table_of_runs_is_told(content: str | None, why: str, tmp_path: Path, monkeypatch, capsys) -> None:
    if content is not None:
        (tmp_path / "runs.csv").write_text(content)
    monkeypatch.setattr("sys.argv", ["survival", str(tmp_path / "runs.csv"), "--out", str(tmp_path / "a.png")])
    with pytest.raises(SystemExit):
        survival.main()
    told = capsys.readouterr().err
    assert f"is no table of runs ({why}" in told and "such as the runs.csv of a report" in told


@pytest.mark.parametrize(
    ("column", "values", "told"),
    [
        ("moment_epoch", ["3", "finished"], "row 2 has 'finished'"),
        ("moment_epoch", [3, -1], "row 2 has .*-1"),
        ("epochs", [None, 9], "row 1 has nothing"),
    ],
)
def test_a_table_whose_columns_hold_no_epochs_is_refused(column: str, values: list[Any], told: str) -> None:
    whole = {"setting": ["a", "a"], "moment_epoch": [3, None], "epochs": [9, 9]}
    with pytest.raises(LabError, match=f"{column}.*{told}"):
        survival.figure(pd.DataFrame(whole | {column: values}))
    with pytest.raises(LabError, match=r"row 1 has its moment \(moment_epoch\) after its last epoch \(epochs\)"):
        survival.figure(pd.DataFrame(whole | {"epochs": [2, 9]}))
    with pytest.raises(LabError, match="row 3 has its moment"):  # of the file, though a row was left out
        rows = {
            "setting": ["a", "a", "a"],
            "moment_epoch": [3, 3, 3],
            "epochs": [9, 9, 2],
            "looked": [False, True, True],
        }
        survival.figure(pd.DataFrame(rows))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: mean_over_seeds([1, 2, 4], 95), "a confidence lies between 0 and 1, as 0.95 does, got 95"),
        (lambda: eureka_ratio(2, 10, 1.0), "a confidence lies between"),
        (lambda: paired({0: 1.0, 1: 2.0}, {0: 2.0, 1: 4.0}, 0), "a confidence lies between"),
        (lambda: holm([0.1, 2.0]), "a p-value lies between 0 and 1, got 2.0"),
    ],
)
def test_numbers_that_cannot_be_are_refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize(
    ("call", "given", "words"),
    [
        (paired, ({0: 1.0, 1: math.inf}, {0: 2.0, 1: 4.0}), "needs finite numbers, got inf for seed 1"),
        (paired, ({0: 1.0, 1: 2.0}, {0: math.nan, 1: 4.0}), "needs finite numbers, got nan for seed 0"),
        (paired, ([1.0, 2.0], [2.0, 4.0]), r"takes a dict for each setting, seed -> value, got \[1.0, 2.0\]"),
        (paired_ratios, ({0: True}, None), "takes a dict for each setting, seed -> value, got None"),
        (paired_ratios, ({0: math.nan}, {0: True}), "is True or False, got nan"),
        (paired_ratios, ({0: True}, {0: 2}), "is True or False, got 2"),
        (mean_over_seeds, ([[1, 2], [3, 4]],), "takes a list of one number per seed"),
        (mean_over_seeds, ([None, 1.0],), "takes a list of one number per seed"),
        (mean_over_seeds, ({0: 1.0},), "takes a list of one number per seed"),
        (mean_over_seeds, ([1.0, 2.0], 0.95, (1, 0)), r"bounds are the smallest and .* got \(1, 0\)"),
        (fisher, ((1.5, 2), (1, 2)), "needs whole numbers 0 <= count <= seeds"),
        (fisher, (3, 10), r"a Eureka-ratio is \(moments, seeds\), as \(7, 10\) is, got 3"),
        (eureka_ratio, (1.5, 3), "needs whole numbers"),
        (eureka_ratio, (1, 3, None), "a confidence lies between"),
        (holm, (None,), "p-values are a list"),
        (holm, ([0.1, "a"],), "a p-value lies between 0 and 1, got 'a'"),
        (times_of, ([30], [10]), "a moment comes no later than the end of its run, got 30 after 10"),
        (times_of, ([None, 3], [10]), "one epoch for each run, got 2 and 1"),
        (times_of, ([math.nan], [10]), "finite numbers, 0 or more, got nan"),
        (Times, ((), (math.inf,)), "finite numbers, 0 or more, got inf"),
        (median_time, (PLACEBO, 0), "a confidence lies between"),
        (no_moment_yet, (SIX_MP, 1), "a confidence lies between"),
    ],
)
def test_what_is_no_number_is_refused(call: Callable[..., object], given: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call(*given)


def test_a_moment_later_than_the_rows_that_are_left_is_its_run_s_end() -> None:
    curves = np.array([[10.0], [np.nan], [np.nan], [0.5], [0.7]], dtype=np.float32)
    eureka: dict[str, Any] = {"happened": True, "epoch": 30, "step": 30, "threshold": 0.7}
    summary = {"status": "finished", "seed": 0, "softmax": "softmax", "epochs": 40, "max_epochs": 40, "eureka": eureka}
    assert times([Record(Path("a"), Summary(**summary), {}, curves)]) == Times((30,), ())
    later = np.tile(curves, 20)
    later[0] = range(1, 21)
    eureka |= {"changed": True, "change": {"epoch": 30, "step": 30, "before": 0.1, "after": 0.9, "strength": 0.9}}
    changed = Record(Path("a"), Summary(**summary | {"eureka": eureka}), {}, later)
    assert changed.visible_epochs < 30 and change_times([changed]) == Times((30,), ())
    # A run that diverged would never have had one.
    diverged = summary | {"status": "failed", "diverged": True, "eureka": {"happened": False, "threshold": 0.7}}
    assert times([Record(Path("a"), Summary(**diverged), {}, curves)]) == Times((), (40,))
    assert times([Record(Path("a"), Summary(**diverged | {"diverged": False}), {}, curves)]) == Times((), (10,))
    # 12 epochs of 10 steps, of which 200 were to come: 20 epochs.
    steps = diverged | {"epochs": 12, "steps": 120}
    assert times([Record(Path("a"), Summary(**steps), {"trainer.max_steps": 200}, curves)]) == Times((), (20,))
    assert times([Record(Path("a"), Summary(**steps), {"trainer.max_steps": 900}, curves)]) == Times((), (40,))
    at_once = diverged | {"epochs": 0, "steps": 5}
    assert times([Record(Path("a"), Summary(**at_once), {"trainer.max_steps": 200}, curves)]) == Times((), (40,))


def test_values_that_are_not_finite_claim_nothing() -> None:
    assert holm([0.01, math.nan, 0.03])[::2] == [0.02, 0.03]
    for value in (math.inf, math.nan):
        mean = mean_over_seeds([1.0, value, 4.0], bounds=(0, 100))
        assert not math.isfinite(mean.value) and math.isnan(mean.std) and (mean.low, mean.high) == (None, None)
