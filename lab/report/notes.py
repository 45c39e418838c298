"""Notes on the runs of a setting that its numbers do not show: other code, and seeds that came out otherwise."""

from __future__ import annotations

from collections.abc import Iterable

from lab.report.outcomes import decided, given_up
from lab.report.records import Record
from lab.report.settings import Setting


def notes_of(setting: Setting) -> list[str]:
    """Returns what is to be known of a setting's runs, each to stand after "they were"."""
    found = []
    if changed := setting.changed_code:
        found.append(f"trained with different versions of {', '.join(changed)}")
    if len(commits := list(dict.fromkeys(filter(None, map(commit_of, setting.runs))))) > 1:
        found.append(f"trained at different commits: {', '.join(commits)}")
    if len(lost := given_up(setting.runs)) in range(1, len(setting.runs)):
        found.append(
            f"in {len(lost)} of {len(setting.runs)} cases ended by the pruner of a search for their accuracy, so that "
            "the others are no fair sample and stand as counts alone"
        )
    if seeds := _contradicted(setting):
        told = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
        found.append(f"repeated for {told} with another outcome (a moment or none), which is not counted")
    return found


def notes_on_all(settings: Iterable[Setting]) -> list[str]:
    """Returns the notes on all settings as sentences; settings with the same note share one."""
    names: dict[str, list[str]] = {}
    settings = list(settings)
    several = len({setting.experiment for setting in settings}) > 1
    for setting in settings:
        for note in notes_of(setting):
            names.setdefault(note, []).append(setting.name + f" ({setting.experiment})" * several)
    return [f"The runs of {'; '.join(own)} were {note}." for note, own in names.items()]


def commit_of(run: Record) -> str:
    """Commit that a run was trained at, in short: "1a2b3c4d", "1a2b3c4d (modified)"; "" where it is not known."""
    git = run.summary.git
    return f"{git.commit[:8]}{' (modified)' * git.modified}" if git.commit else ""


def _contradicted(setting: Setting) -> list[int]:
    """Seeds of which the counted run had a moment and another run certainly none, or the other way round."""
    counted = {run.seed: _had_one(run) for run in setting.runs}
    others = {run.seed for run in setting.doubles if {counted[run.seed], _had_one(run)} == {True, False}}
    return sorted(others)


def _had_one(run: Record) -> bool | None:
    """Tells whether a run had a moment; None where it might still have had one."""
    known = run.moment is not None or decided(run)
    return run.moment is not None if known else None
