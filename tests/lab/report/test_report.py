"""The files of a report: written whole, traced to their runs, safe against what they are made from."""

from __future__ import annotations

import base64
import csv
import json
import os
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_runs import changed_at

from lab.console import LabError
from lab.report import write as writing
from lab.report.__main__ import main
from lab.report.assemble import assemble
from lab.report.drawings import file_name
from lab.report.gather import gather
from lab.report.make import report
from lab.report.outcomes import baseline_of, compare, outcome
from lab.report.settings import settings
from lab.report.write import _interval

HOSTILE = "../../out | `a` <script>alert(1)</script> ![b](http://c/d.png) $\\frac{ \x1b[31m\n# e \ud800"


def test_where_no_folder_can_be_read_the_error_says_so(tmp_path: Path, capsys) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "summary.json").write_text('{"loss": 0.5}')  # of another tool
    with pytest.raises(LabError, match=r"no runs below .*: none of the folders named above is one"):
        report(tmp_path)
    assert "run: summary.json is wrong" in capsys.readouterr().err


def test_what_a_stranger_wrote_is_text_and_stays_in_the_report(write, tmp_path: Path, capsys) -> None:
    folder = write(0, 12, root=tmp_path / "runs")
    summary = json.loads((folder / "summary.json").read_text())
    named = {"experiment": HOSTILE[:-1], "softmax": HOSTILE[:-1], "machine": {"gpu": HOSTILE}, "error": HOSTILE[:-1]}
    (folder / "summary.json").write_text(json.dumps(summary | named))
    (folder / "pictures").mkdir()
    (tmp_path / "secret.png").write_bytes(b"secret")
    (folder / "pictures" / "a.png").symlink_to(tmp_path / "secret.png")
    (folder / "pictures" / "b.png").write_bytes(b"mine")
    os.mkfifo(folder / "pictures" / "c.png")
    _, out = report([tmp_path / "runs"])
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "secret.png"}
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"reasoning", "report", ".report"}
    page, text = (out / "index.html").read_text(), (out / "report.md").read_text()
    assert base64.b64encode(b"mine").decode() in page and base64.b64encode(b"secret").decode() not in page
    assert "alert(1)" in page and "<script>alert" not in page + text
    for wrong in ("\x1b", "\n# e", "![b](", " | `a`", "http://c"):
        assert wrong not in text
    assert "out \\| \\`a\\` &lt;script>" in text


class _Page(HTMLParser):
    """The parts of a page that a screen reader tells: tag and attributes of each element, and the text of headings."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text_of: dict[str, str] = {}
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        tag, attributes = self.elements[-1] if self.elements else ("", {})
        if tag in ("h2", "h3") and "id" in attributes:
            self.text_of.setdefault(attributes["id"], data)

    def every(self, attribute: str, *tags: str) -> list[str]:
        return [own[attribute] for tag, own in self.elements if attribute in own and (not tags or tag in tags)]


def test_pictures_headings_and_tables_have_names_of_their_own(write, tmp_path: Path) -> None:
    """Two experiments have the same figures, and may have settings of the same name."""
    for experiment in ("reasoning", "reasoning of mine"):
        for seed in range(2):
            write(seed, None, experiment="reasoning", root=tmp_path / experiment)
            folder = write(seed, seed or None, softmax="norm_softmax", root=tmp_path / experiment)
            (folder / "pictures").mkdir()
            (folder / "pictures" / "head_entropy.png").write_bytes(b"picture")
    for path in (tmp_path / "reasoning of mine").rglob("summary.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"experiment": "reasoning of mine"}))
    _, out = report(tmp_path)
    page = _Page(out / "index.html")
    ids, alts = page.every("id"), page.every("alt", "img")
    named = [[page.text_of[part] for part in own.split()] for own in page.every("aria-labelledby", "h3")]
    for names in (ids, alts, [" ".join(own) for own in named], page.every("aria-label", "table")):
        assert len(names) > 5 and len(set(names)) == len(names)
    assert not any(" " in own for own in ids)
    assert {own[1:] for own in page.every("href", "a") if own.startswith("#")} <= {*ids}
    for wanted in (
        "Accuracy of all seeds, by epoch, reasoning: softmax (2 seeds); norm_softmax (2 seeds)",
        "No Eureka-moment yet (Kaplan-Meier), reasoning of mine: softmax: 0 of 2 seeds had a Eureka-moment; "
        "norm_softmax: 1 of 2 seeds had a Eureka-moment",
        "head entropy, norm_softmax, seed 0, reasoning of mine",
    ):
        assert wanted in alts
    assert ["Accuracy of all seeds, by epoch", "reasoning of mine"] in named and ["Diagnostics", "reasoning"] in named


def test_a_report_may_lie_below_the_home_folder(write, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(0, 12, root=tmp_path / "runs")
    assert report("~/runs", out="~/out")[1] == tmp_path / "out"


@pytest.mark.parametrize("listed", ['["../mine.png", "figures/old.png", 5, "figures/away/mine.png"]', "{}", "[" * 9999])
def test_a_list_of_files_that_came_with_a_report_deletes_nothing_elsewhere(write, tmp_path: Path, listed: str) -> None:
    write(0, 12, root=tmp_path / "runs")
    _, out = report([tmp_path / "runs"], out=tmp_path / "out")
    mine = tmp_path / "mine.png"
    mine.touch()
    (out / "figures" / "away").symlink_to(tmp_path)
    (out / ".made.json").write_text(listed)
    report([tmp_path / "runs"], out=out)
    assert mine.exists()
    shutil.rmtree(out / "figures")
    (out / "figures").symlink_to(tmp_path)
    with pytest.raises(LabError, match="figures is a link"):
        report([tmp_path / "runs"], out=out)


def test_moments_of_other_metrics_or_thresholds_are_not_compared(write, tmp_path: Path) -> None:
    for seed in range(3):
        write(seed, 12)
        write(seed, None, "callbacks.eureka.threshold=0.8", softmax="norm_softmax")
        write(seed, None, softmax="sigmoid")
    (section,) = assemble([gather(tmp_path)]).sections
    compared = {against.setting.softmax: (against.ratio, against.time) for against in section.comparisons.values()}
    assert compared["norm_softmax"] == (None, None)
    assert compared["sigmoid"] == (pytest.approx(0.1), pytest.approx(0.1))


def test_runs_of_different_code_and_of_different_outcome_are_told(write, tmp_path: Path) -> None:
    def trained(seed: int, moment: int | None, commit: str, modified: bool = False, **where: Path) -> None:
        path = write(seed, moment, **where) / "summary.json"
        git = {"commit": 40 * commit, "modified": modified}
        path.write_text(json.dumps(json.loads(path.read_text()) | {"git": git}))

    trained(0, None, "a", modified=True)
    trained(1, 12, "b")
    trained(0, 12, "b", root=tmp_path / "twice")
    trained(1, 14, "b", root=tmp_path / "twice")
    _, out = report([tmp_path], out=tmp_path / "out", pictures_mib=0)
    page, text = (out / "index.html").read_text(), (out / "report.md").read_text()
    assert ">finished</td>" in page and page.count(">finished, not counted</td>") == 2
    assert ">aaaaaaaa (modified)</td>" in page and ">bbbbbbbb</td>" in page
    assert text.count(" (not counted)") == 2
    for told in (page, text):
        assert "The runs of softmax were trained at different commits: aaaaaaaa (modified), bbbbbbbb." in told
        assert "were repeated for seed 0 with another outcome (a moment or none), which is not counted." in told
    rows = list(csv.DictReader((out / "runs.csv").open()))
    assert [row["modified"] for row in rows] == ["True", "False", "False", "False"]


def test_a_baseline_of_one_experiment_alone_is_told(write, tmp_path: Path, capsys) -> None:
    for softmax in ("softmax", "norm_softmax"):
        write(0, 12, softmax=softmax)
        write(0, 12, softmax=softmax if softmax == "softmax" else "log_length", experiment="main_task")
    found = assemble([gather(tmp_path)], baseline="norm_softmax")
    told = "no setting of main_task is called 'norm_softmax': its settings are compared with softmax\n"
    assert capsys.readouterr().err == told
    assert [section.baseline and section.baseline.name for section in found.sections] == ["softmax", "norm_softmax"]
    assemble([gather(tmp_path)], baseline="softmax")
    assert capsys.readouterr().err == ""


def test_the_page_says_what_its_numbers_leave_open(write, tmp_path: Path) -> None:
    for seed in range(3):
        path = write(seed, 12) / "summary.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"seeds_together": 3, "wall_seconds": 7200}))
    _, out = report([tmp_path], out=tmp_path / "out", pictures_mib=0)
    page, text = (out / "index.html").read_text(), (out / "report.md").read_text()
    assert page.count("<td>2.00 of 3 seeds together</td>") == 3
    assert [row["seeds_together"] for row in csv.DictReader((out / "runs.csv").open())] == ["3"] * 3
    for said in (
        "Hours of seeds that were trained together in one process are those of the process",
        "The interval of a difference is not corrected",
        "cut at 0 and at the length of the longest training",
        "later than the last validation at which one would show",
    ):
        assert said in text


def test_an_experiment_of_long_foreign_letters_names_a_file(tmp_path: Path) -> None:
    (tmp_path / f"{file_name('実' * 79)}_accuracy.png").touch()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("3/4 (30 to 95)", '<span class="value">3/4</span> <small>30 to 95</small>'),
        (
            "3/4 (30 to 95); not counted: 2 with a moment",
            '<span class="value">3/4</span> <small>30 to 95; not counted: 2 with a moment</small>',
        ),
        ("3/4 (any epoch), 2/4 (last epoch)", "3/4 (any epoch), 2/4 (last epoch)"),
        ("3/4", "3/4"),
    ],
)
def test_an_interval_stands_on_a_line_of_its_own(text: str, shown: str) -> None:
    assert str(_interval(text)) == shown


def test_an_experiment_that_is_no_name_is_an_unknown_one(write, tmp_path: Path) -> None:
    for seed in range(2):
        for more in ((), ("optim.lr=1e-2",)):
            path = write(seed, 12, *more) / "summary.json"
            name = ("null", "[a,b]")[seed]
            path.write_text(path.read_text().replace('"experiment": "reasoning"', f'"experiment": "{name}"'))
    assert [section.experiment for section in assemble([gather(tmp_path)]).sections] == ["[a,b]", "null"]


def test_a_report_that_is_broken_off_is_written_anew(write, tmp_path: Path, monkeypatch) -> None:
    write(0, 12)
    with monkeypatch.context() as patched:
        patched.setattr(writing, "page_values", interrupted)
        with pytest.raises(KeyboardInterrupt):
            report([tmp_path], pictures_mib=0)
    _, out = report([tmp_path], pictures_mib=0)
    assert "reasoning_survival" in (out / "index.html").read_text()
    assert (out / "figures" / "reasoning_survival.png").exists()


def test_what_a_killed_report_was_writing_is_no_obstacle_and_does_not_stay(write, tmp_path: Path) -> None:
    write(0, 12)
    (out := tmp_path / "out").mkdir()
    (out / ".index.html.0a1b2c3d.unfinished").touch()
    report([tmp_path], out=out, pictures_mib=0)
    (out / "figures" / ".x.png.0a1b2c3d.unfinished").touch()
    report([tmp_path], out=out, pictures_mib=0)
    drafts = list(out.rglob("*.unfinished"))
    assert len(drafts) == 2, "another report may be writing them"
    for one in drafts:
        os.utime(one, (0, 0))
    report([tmp_path], out=out, pictures_mib=0)
    assert not list(out.rglob("*.unfinished")) and (out / "report.md").exists()


def test_what_a_report_no_longer_has_is_removed_and_nothing_else(write, tmp_path: Path) -> None:
    write(0, 12)
    write(0, 12, experiment="main_task")
    _, out = report([tmp_path], pictures_mib=0)
    theirs = out / "figures" / "my_notes.png"
    theirs.write_bytes(b"mine")
    old = out / "figures" / "main_task_survival.png"
    assert old.exists()
    shutil.rmtree(tmp_path / "main_task")
    report([tmp_path], pictures_mib=0)
    assert not old.exists() and theirs.read_bytes() == b"mine"
    assert (out / "figures" / "reasoning_survival.png").exists()


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere"], "nowhere is no folder"),
        (["{runs}", "--against", "eureka/table_99"], "no published table is called 'eureka/table_99'"),
        (["{runs}", "--against", "eureka/table_11"], "no rows that the lab can run"),
        (["{runs}", "--against", "eureka/table_1"], "there are runs of: reasoning"),
        (["{runs}", "--confidence", "95"], "--confidence must be"),
        (["{runs}", "--pictures", "-1"], "--pictures must be"),
        (["{runs}", "--baseline", "sotfmax"], "no setting is called 'sotfmax'"),
        (["{runs}", "--out", "{runs}/reasoning"], "holds something other than a report"),
        (["{empty}"], "no runs below"),
    ],
)
def test_bad_input_is_one_sentence(write, tmp_path: Path, arguments, told: str, monkeypatch, capsys) -> None:
    write(0, 12)
    (tmp_path / "empty").mkdir()
    filled = [a.format(runs=tmp_path, empty=tmp_path / "empty") for a in arguments]
    monkeypatch.setattr(sys, "argv", ["lab.report", *filled])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err.strip()
    assert ended.value.code == 1 and told in said and len(said.splitlines()) == 1
    assert not (tmp_path / "report").exists()


@pytest.mark.pictures
def test_the_files_trace_every_number_and_come_out_the_same_again(write, tmp_path: Path) -> None:
    folders = [write(seed, 12 if seed else None, watched=10_000) for seed in range(3)]
    found, out = report([tmp_path], "eureka/figure_8", pictures_mib=1)
    assert repr(found) == f"Report({tmp_path}: 3 runs in 1 setting)"
    assert out == tmp_path / "report-eureka-figure_8"
    runs = list(csv.DictReader((out / "runs.csv").open()))
    assert [(out / row["folder"]).resolve() for row in runs] == folders
    assert [row["moment_epoch"] for row in runs] == ["", "12", "12"]
    (ratio, *_) = csv.DictReader((out / "against.csv").open())
    assert ratio["paper"] == "3/5" and ratio["measured"].startswith("2/3")
    assert [(out / folder).resolve() for folder in ratio["folders"].split("; ")] == folders
    (setting,) = csv.DictReader((out / "settings.csv").open())
    assert setting["Eureka-ratio"].startswith("2/3 (21% to 94%; exact 9% to 99%)")
    names = {path.stem for path in (out / "figures").iterdir()}
    assert {"reasoning_accuracy_by_epoch", "reasoning_loss_by_moment", "reasoning_survival"} < names
    assert {path.suffix for path in (out / "figures").iterdir()} == {".png", ".pdf"}
    before = {path: path.read_bytes() for path in (out / "figures").iterdir()}
    again, _ = report([tmp_path], "eureka/figure_8", pictures_mib=1)  # over its own folder
    assert {path: path.read_bytes() for path in (out / "figures").iterdir()} == before
    assert len(again.runs) == len(found.runs) == 3  # a report is no run
    (out / "index.html").unlink()  # as in a repository that keeps the rest
    report([tmp_path], "eureka/figure_8", pictures_mib=1, processes=2)
    assert (out / "index.html").exists()
    assert {path: path.read_bytes() for path in (out / "figures").iterdir()} == before


def test_a_wider_interval_is_asked_for_by_its_confidence(write, tmp_path: Path) -> None:
    for seed in range(10):
        moment = 8 + seed if seed < 6 else None
        accuracy = 0.8 + 0.02 * seed if moment else 0.5 + 0.01 * seed
        changed_at(write(seed, moment, accuracy=accuracy), moment)
        write(seed, 12 if seed < 8 else None, softmax="norm_softmax", accuracy=0.7 + 0.01 * seed**1.5)
    one, other = settings(gather(tmp_path).runs)
    base = baseline_of([one, other])
    assert base is not None
    inner, outer = (compare([outcome(one), outcome(other)], base, level)[0].watched for level in (0.5, 0.95))
    assert inner is not None and outer is not None
    assert outer[1] < inner[1] < inner[2] < outer[2]
    narrow, wide = outcome(one, confidence=0.5), outcome(one, confidence=0.95)
    for name in ("ratio", "exact", "accuracy", "plateau", "eureka_epoch", "median", "change_ratio", "change_median"):
        within, around = getattr(narrow, name), getattr(wide, name)
        assert around.low <= within.low and within.high <= around.high, name
        assert (around.low, around.high) != (within.low, within.high), name
