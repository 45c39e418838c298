"""Bad command lines, and every option of ``configs/`` with values of all kinds: one sentence each, and nothing left."""

from __future__ import annotations

import importlib
import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.utils import get_object, instantiate
from omegaconf import OmegaConf

from lab.config.check import PLAIN_VALUES, check_arguments, check_plain
from lab.config.command_line import composed
from lab.config.compose import CONFIGS
from lab.console import LabError
from lab.runs.outcome import Ending
from scripts.storm.bad_lines import BAD_LINES, BadLine

# Words of the libraries, which say nothing to who has typed a command.
JARGON = re.compile(
    "Traceback|full_key|object_type|HydraException|LexerNoViableAlt|no viable alternative|mismatched input|"
    "ValidationError|Error executing job|InstantiationException"
)
# Characters of a sentence.
LONGEST = 350
MAINS = {"lab.bench": "lab.bench.__main__", "lab.report": "lab.report.__main__"}


def problem_of(line: BadLine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str | None:
    """What is wrong with the answer to a line; None if it is one sentence that names what it must."""
    monkeypatch.setattr(sys, "argv", [line.module, *line.arguments])
    main = importlib.import_module(MAINS.get(line.module, line.module)).main
    try:
        main()
        status: object = 0
    except SystemExit as ended:
        status = ended.code
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    said = capsys.readouterr().err
    if status not in (1, 2) or not said.startswith("error: ") or said.count("\n") != 1:
        return f"exit status {status}: {said}"
    if line.named not in said or JARGON.search(said) or len(said) > LONGEST:
        return f"{len(said)} characters, to name {line.named!r}: {said}"
    return None


def test_the_table_covers_every_command() -> None:
    assert len(set(BAD_LINES)) == len(BAD_LINES) >= 200
    assert {line.module for line in BAD_LINES} == {
        f"lab.{name}" for name in ("train", "inspect", "report", "status", "bench")
    }


@pytest.mark.parametrize("module", dict.fromkeys(line.module for line in BAD_LINES))
def test_every_bad_line_is_refused_in_one_sentence_and_leaves_nothing(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = {}
    for line in BAD_LINES:
        if line.module == module and (problem := problem_of(line, monkeypatch, capsys)):
            wrong[" ".join(line.arguments)] = problem
        assert not list(tmp_path.iterdir()), line
    assert not wrong, "\n".join(f"{line}: {problem}" for line, problem in wrong.items())


# Wrong types, zero, negative, not finite, enormous.
VALUES = (
    "foo",
    "",
    True,
    None,
    [],
    ["foo"],
    {},
    {"foo": 1},
    0,
    -1,
    0.5,
    -0.5,
    10**15,
    1e300,
    math.inf,
    -math.inf,
    math.nan,
)
# Between them, these compose every class that configs/ name and that needs nothing but its options.
COMPOSED = {
    "main_task": ["data/source=drawn", "softmax=norm_softmax_heat_treatment", "intervention=grad_scaling"],
    "reasoning": ["optim=sgd", f"callbacks=[{','.join(path.stem for path in (CONFIGS / 'callbacks').glob('*.yaml'))}]"],
    "max_retrieval": [],
    "imagenet100": [],
}


def answer(where: str, check: Callable[[], object]) -> str | None:
    """What is wrong with how a value is judged: anything but nothing, or one sentence that names the option."""
    try:
        check()
    except LabError as error:
        said = str(error)
        fine = where in said and "\n" not in said and not JARGON.search(said) and len(said) <= LONGEST
        return None if fine else f"{where}: {said}"
    except Exception as error:
        return f"{where}: {type(error).__name__}: {error}"
    return None


def targets(node: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every part of a config file that names what is made of it, by path."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield where, node
        for key, value in node.items():
            yield from targets(value, f"{where}.{key}")


def test_every_option_is_accepted_or_refused_in_one_sentence() -> None:
    wrong = [answer(path, lambda p=path, v=value: check_plain(p, v)) for path in PLAIN_VALUES for value in VALUES]
    for file in sorted(CONFIGS.rglob("*.yaml")):
        if "hydra" in file.parts:
            continue  # options of launchers and sweepers, which check their own
        for where, node in targets(yaml.safe_load(file.read_text()), file.parent.name):
            target = get_object(node["_target_"])
            for option in node.keys() - {"_target_", "_partial_", "defaults"}:
                for value in VALUES:
                    check = lambda t=target, o=option, v=value, w=where: check_arguments(t, {o: v}, w)  # noqa: E731
                    wrong.append(answer(f"{where}.{option}", check))
    assert not [one for one in wrong if one]


@pytest.mark.parametrize("experiment", COMPOSED)
def test_what_is_accepted_can_be_made(experiment: str) -> None:
    config = composed([f"experiment={experiment}", *COMPOSED[experiment]]).config
    config.paths.run = "."
    plain: Any = OmegaConf.to_container(config, resolve=True)
    wrong = []
    for group in ("data", "optim", "callbacks", "intervention", "softmax"):
        for where, node in targets(plain[group], group):
            if node.get("_partial_"):
                continue  # made with the model
            for option in node.keys() - {"_target_"}:
                for value in VALUES:
                    try:
                        check_arguments(get_object(node["_target_"]), {option: value}, where)
                    except LabError:
                        continue

                    def make(node: Any = {**node, option: value}) -> None:  # noqa: B006
                        with Ending().told():
                            instantiate(node, _convert_="all")

                    wrong.append(answer(option, make))
    assert not [one for one in wrong if one]
