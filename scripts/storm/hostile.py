"""Hostile folders: runs that someone made in order to run code, to hang a reader or to write into its page."""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import yaml

from lab.runs.checkpoints import save_checkpoint
from scripts.storm.case import Case, Storm
from scripts.storm.command import problem_with
from scripts.storm.damage import look
from scripts.storm.damaged_run import checkpoints_of, stopped_run
from scripts.storm.grounds import Grounds, train

_LONGEST = 50.0
_COMMANDS = ("inspect", "report", "status", "train")
_SCRIPT = "<script>alert(1)</script>"
# Name of a folder that exists only if code of the hostile run was executed.
_MADE = "made-by-the-folder"


class _Pickled:
    """A value whose unpickling makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def _target(section: str, target: str, **options: Any) -> Callable[[Path, Path], None]:
    """Puts a ``_target_`` into config.yaml; ``{made}`` and ``{pickle}`` in options are paths."""

    def attack(run: Path, made: Path) -> None:
        (run / "some.pkl").write_bytes(pickle.dumps(_Pickled(made)))
        paths = {"made": str(made), "pickle": str(run / "some.pkl")}
        config = yaml.safe_load((run / "config.yaml").read_text())
        *above, last = section.split(".")
        place = config
        for key in above:
            place = place[key]
        place[last] = {"_target_": target, **_filled(options, paths)}
        (run / "config.yaml").write_text(yaml.safe_dump(config))

    return attack


def _filled(value: Any, paths: Mapping[str, str]) -> Any:
    """The value with paths in all of its texts, however deep."""
    if isinstance(value, str):
        return value.format(**paths)
    if isinstance(value, Mapping):
        return {key: _filled(one, paths) for key, one in value.items()}
    return [_filled(one, paths) for one in value] if isinstance(value, list) else value


def _text(name: str, text: str | Callable[[], str]) -> Callable[[Path, Path], None]:
    """Puts text before what a file holds; ``{made}`` is a path."""

    def attack(run: Path, made: Path) -> None:
        said = text if isinstance(text, str) else text()
        (run / name).write_text(said.replace("{made}", str(made)) + "\n" + (run / name).read_text())

    return attack


def _bomb() -> str:
    levels = ["l0: &l0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 10)]
    return "\n".join(levels)


def _summary(**fields: Any) -> Callable[[Path, Path], None]:
    def attack(run: Path, made: Path) -> None:
        own = json.loads((run / "summary.json").read_text())
        (run / "summary.json").write_text(json.dumps({**own, **fields}))

    return attack


def _instead(name: str, make: Callable[[Path], object]) -> Callable[[Path, Path], None]:
    """Puts something else in the place of a file."""

    def attack(run: Path, made: Path) -> None:
        (run / name).unlink()
        make(run / name)

    return attack


def _huge(path: Path) -> None:
    """Makes a file of many zeros that takes no room on the disk."""
    with path.open("wb") as file:
        file.truncate(2**29)


def _pickled_checkpoint(run: Path, made: Path) -> None:
    path = checkpoints_of(run)["newest"]
    # Saved with the right digest: a checkpoint with a wrong one is refused before anything is unpickled.
    save_checkpoint({**torch.load(path, weights_only=True), "more": _Pickled(made)}, path)


ATTACKS: dict[str, Callable[[Path, Path], None]] = {
    "data: pandas.read_pickle": _target("data", "pandas.read_pickle", filepath_or_buffer="{pickle}"),
    "data: torch.load": _target("data", "torch.load", f="{pickle}", weights_only=False),
    "model: os.mkdir": _target("model", "os.mkdir", path="{made}"),
    "model: builtins.exec": _target("model", "builtins.exec", _args_=["__import__('os').mkdir('{made}')"]),
    "softmax: lab.files.write_text": _target("softmax", "lab.files.write_text", path="{made}", text="x"),
    "softmax: subprocess.run": _target("softmax", "subprocess.run", args=["mkdir", "{made}"]),
    "optim: pandas.read_pickle": _target("optim", "pandas.read_pickle", filepath_or_buffer="{pickle}"),
    "callbacks: os.mkdir": _target("callbacks.eureka", "os.mkdir", path="{made}"),
    "nested in data": _target("data.numbers", "os.mkdir", path="{made}"),
    "nested in model": _target("model.more", "builtins.open", file="{made}", mode="w"),
    "a path of hydra": _target("model", "hydra.utils.instantiate", config={"_target_": "os.mkdir", "path": "{made}"}),
    "a tag of Python": _text("config.yaml", "more: !!python/object/apply:os.mkdir ['{made}']"),
    "an alias bomb": _text("config.yaml", _bomb),
    "deep YAML": _text("config.yaml", lambda: f"more: {'[' * 5000}{']' * 5000}"),
    "much YAML": _text("config.yaml", lambda: "\n".join(f"key{number}: {'x' * 1000}" for number in range(30_000))),
    "deep JSON": _instead("summary.json", lambda path: path.write_text("[" * 100_000 + "]" * 100_000)),
    "a name of markup": _summary(name=_SCRIPT, experiment=_SCRIPT, softmax=_SCRIPT, error=_SCRIPT, status="failed"),
    "a metric of markup": _summary(metrics={_SCRIPT: 1.0}, overrides=[_SCRIPT, "a=b"], command=_SCRIPT),
    "escape sequences": _summary(softmax="\x1b[2J\x1b]0;mine\x07", error="\x1b[31m", status="failed"),
    "a pickle in a checkpoint": _pickled_checkpoint,
    "config.yaml is a link": _instead("config.yaml", lambda path: path.symlink_to("/etc/hostname")),
    "a huge metrics.csv": _instead("metrics.csv", _huge),
    "a huge summary.json": _instead("summary.json", _huge),
    "config.yaml is a pipe": _instead("config.yaml", os.mkfifo),
    "metrics.csv is a pipe": _instead("metrics.csv", os.mkfifo),
    "summary.json is a pipe": _instead("summary.json", os.mkfifo),
}
_PAIRS = list(product(ATTACKS, _COMMANDS))


def _case(grounds: Grounds, number: int) -> Case:
    name, command = _PAIRS[number]
    return Case(command, f"{name}, {command}", partial(_carry_out, grounds, name, command))


STORM = Storm(
    count=len(_PAIRS),
    held="no code of the folder runs, no page and no terminal takes its markup, no command hangs",
    draw=_case,
    table="hostile",
)


def _carry_out(grounds: Grounds, attack: str, command: str, folder: Path) -> str | None:
    shape, run = stopped_run(grounds, folder)
    made = folder / _MADE
    ATTACKS[attack](run, made)
    began = time.monotonic()
    said = train(shape, folder / "runs") if command == "train" else look(command, run, folder)
    seconds = time.monotonic() - began
    if made.exists():
        return "code of the folder ran"
    if seconds > _LONGEST:
        return f"it took {seconds:.0f} seconds"
    if "\x1b[" in said.out + said.err:
        return "escape sequences of the folder reach the terminal"
    pages = [path for path in folder.glob("report/*") if path.suffix in (".md", ".html")]
    if marked := [path.name for path in pages if _SCRIPT in path.read_text()]:
        return f"{', '.join(marked)} takes the markup of the folder"
    return problem_with(said)
