"""What tests share: a small data module, where real data lies, how to train and what a run leaves."""

from __future__ import annotations

import atexit
import gc
import importlib.util
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Side by side (make test), each worker takes one core: two of several threads would wait for each other.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# The compiler's own workers would each import torch, to compile a kernel or two.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# Hypothesis would keep its notes in the working directory.
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(Path(tempfile.gettempdir()) / "eureka-hypothesis"))

# Images that take seconds to draw are kept between tests, and not where a user has theirs.
os.environ["XDG_CACHE_HOME"] = str(Path(tempfile.gettempdir()) / "eureka-cache")

# Started in the background of a shell, a process is deaf to SIGINT, and so are its children.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

import numpy as np
import pytest
import yaml
from filelock import FileLock
from hypothesis import HealthCheck, settings
from PIL import Image

import lab
from lab.console import LabError
from lab.runs import lock
from lab.runs.folder import Run
from lab.runs.lock import Holder
from lab.runs.summary import FILE, read_summary
from scripts.process import Process

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from lab.datasets.vision import VisionData

# Here, torch and what imports it are imported within functions: of several workers (make test) none begins until the
# process that controls them has imported this file, and it has no use for them.

# The same examples each time, and none kept; a fixture's folder may serve many of them.
settings.register_profile(
    "storm",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
settings.load_profile("storm")

ROOT = Path(__file__).resolve().parent.parent

# Composing reads some fifty files; libyaml's parser is several times as fast as the one in Python.
vars(yaml)["SafeLoader"] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# The main task in small: drawn images, 16 pixels, batches of 16, four steps an epoch.
SMALL = (
    "experiment=main_task",
    "data/source=drawn",
    "data.source.digits.train_size=200",
    "data.source.digits.test_size=100",
    "data.source.garments.train_size=200",
    "data.source.garments.test_size=100",
    "data.tile_size=8",
    "data.batch_size=16",
    "data.epoch_size=64",
    "data.validation_size=40",
    "model.depth=2",
    "model.heads=2",
    "model.head_dim=8",
    "optim.warmup_epochs=1",
    "trainer.max_epochs=4",
)

# One run in two processes of this machine.
TWO_PROCESSES = ("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2", "trainer.precision=32-true")

# Ready configs that need more than a plain installation.
OPTUNA = importlib.util.find_spec("optuna") is not None


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of real MNIST and Fashion-MNIST, from EUREKA_DATA."""
    folder = os.environ.get("EUREKA_DATA")
    if not folder:
        pytest.skip("EUREKA_DATA is not set: it names the folder that holds MNIST/ and FashionMNIST/")
    return Path(folder)


@pytest.fixture(scope="session")
def drawn_sources() -> dict:
    """Small drawn sources, drawn once a session."""
    from lab.datasets.drawn import DrawnDigits, DrawnGarments

    return {
        "digits": DrawnDigits(train_size=400, test_size=200),
        "garments": DrawnGarments(train_size=300, test_size=200),
    }


@pytest.fixture
def vision_data(drawn_sources: dict) -> VisionData:
    """The main task on drawn images, in small."""
    from lab.datasets.tasks.main import MainTask
    from lab.datasets.vision import VisionData

    data = VisionData(MainTask(), drawn_sources, batch_size=32, epoch_size=256, validation_size=100)
    data.setup()
    return data


@pytest.fixture
def trained_here(monkeypatch: pytest.MonkeyPatch, one_thread) -> list[list[str]]:
    """Overrides of each training that a script asks for, which is done in this process: a new one imports torch."""
    from scripts.reproduce import common

    asked: list[list[str]] = []

    def train_here(overrides: list[str], log: object = None) -> int:
        asked.append(overrides)
        lab.run([*overrides, "logger=csv_only"])
        return 0

    monkeypatch.setattr(common, "train_apart", train_here)
    return asked


@pytest.fixture
def one_thread():
    """Sums in one order, whatever the machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def traced_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """``torch.compile`` traces graphs and gradients, and does without the C++ of each kernel, two seconds apiece."""
    import torch

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    monkeypatch.setenv("CXX", "true")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Makes random numbers those of the last time: what fails once in a hundred times is found by nobody else."""
    import torch

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def blank_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made and saved, but nothing is drawn on them, unless the test is marked ``pictures``.

    Drawing is most of the time of a short run, and few tests look at what was drawn. Fixtures of a module and forks
    (:class:`Process`) draw.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    from lab.plotting import figures

    if request.node.get_closest_marker("pictures") is None:
        monkeypatch.setattr(Figure, "draw", lambda self, renderer: None)
        monkeypatch.setattr(ConstrainedLayoutEngine, "execute", lambda self, figure: None)
        # Of few dots, which take less time to pack.
        save = Figure.savefig
        monkeypatch.setattr(Figure, "savefig", lambda self, *args, **given: save(self, *args, **given | {"dpi": 20}))
        monkeypatch.setattr(figures, "DPI", 20)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, so that no worker is left with them at the end."""
    longest = ("slurm", "slow")
    items.sort(key=lambda item: next((n for n, name in enumerate(longest) if item.get_closest_marker(name)), 2))


def pytest_collection_finish() -> None:
    """Leaves what is imported by now to itself: searching it took a tenth of the time of composing."""
    gc.collect()
    gc.freeze()
    # Undone when Python ends: PyTorch's libraries complain of what was never collected. Not sooner, for pytest itself
    # searches all of it five times then.
    atexit.register(gc.unfreeze)


def held(folder: Path) -> Run:
    """A run folder that this process holds."""
    run = Run(folder)
    run.hold()
    return run


def lab_train(*overrides: str, folder: Path, check: bool = True) -> subprocess.CompletedProcess:
    """``python -m lab.train`` in ``folder``, as a user types it."""
    return python("-m", "lab.train", *overrides, folder=folder, check=check)


def torchrun(*overrides: str, folder: Path) -> None:
    """``torchrun --nproc-per-node=2 -m lab.train`` in ``folder``: two processes that are there at once.

    Lightning would start the second by itself, as a new Python that imports all libraries.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "test"}
    there = {**os.environ, **told, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}"}
    ranks = [{"RANK": f"{rank}", "LOCAL_RANK": f"{rank}"} for rank in range(2)]
    words = ("-m", "lab.train", *overrides, *TWO_PROCESSES)
    running = [Process(*words, folder=folder, environment=there | rank) for rank in ranks]
    try:
        while (ends := {process.poll() for process in running}) - {0} == {None}:
            time.sleep(0.02)
        assert ends == {0}, "\n".join(process.err.read_text()[-4000:] for process in running)
    finally:
        for process in running:  # it would wait for one that has failed
            process.kill()


def told_to_end(
    words: Sequence[str], folder: Path, ready: Callable[[int], bool], number: signal.Signals, group: bool = True
) -> str:
    """What ``lab.train`` says that gets a signal once it is ready, and ends with its exit status.

    Args:
        words: its command line.
        folder: where it is typed.
        ready: told by its process id.
        number: the signal.
        group: the signal is for its workers, too, as Ctrl-C in a terminal is.
    """
    alone = "import os, runpy; os.setpgrp(); runpy.run_module('lab.train', run_name='__main__', alter_sys=True)"
    process = Process("-c", alone, *words, folder=folder)
    try:
        while process.poll() is None:
            with suppress(FileNotFoundError):  # a folder that is taken back while it is looked through
                if ready(process.pid):
                    break
            time.sleep(0.05)
        (os.killpg if group else os.kill)(process.pid, number)
        _, said = process.communicate(60)
        assert process.returncode == 128 + number, said
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return said


def python(*words: str, folder: Path, check: bool = True, **options: Any) -> subprocess.CompletedProcess:
    """``python`` with these words, in ``folder`` and a process of its own; ``options`` as of :class:`Process`."""
    process = Process(*words, folder=folder, **options)
    out, err = process.communicate()
    if check:
        assert process.returncode == 0, err[-4000:]
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def pytest_sessionfinish() -> None:
    """Ends what makes processes."""
    Process.end()


def train_in(folder: Path, *overrides: str) -> Path:
    """Trains in this process, which has all imported already; the run folder."""
    # Not every test trains, and this imports nearly all there is.
    from lab.train import run

    run([*overrides, f"paths.runs={folder}", "threads=1"])
    return only_run(folder)


def problem_with(overrides: Sequence[str], config_dir: Path | None = None, several: str | None = None) -> str | None:
    """What is said of overrides that do not compose; None of those that do."""
    from lab.config.command_line import composed

    try:
        composed(overrides, config_dir, several)
    except LabError as error:
        return str(error)
    return None


@pytest.fixture
def hydra() -> Iterator[None]:
    """Hydra, initialised with the lab's configs."""
    from lab.config.compose import initialized

    with initialized():
        yield


def composed(*overrides: str) -> DictConfig:
    """The config of these overrides, with a run folder."""
    from lab.config.compose import compose_config

    return compose_config([*overrides, "paths.run=runs/test"])


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that ``make(folder)`` has filled: once a session, for all its workers, whose tests only read it."""
    root = factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    folder = root / f"once-{name}"
    with FileLock(f"{folder}.lock"):
        if not (folder / ".made").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            (folder / ".made").touch()
    return folder


def only_run(folder: Path) -> Path:
    """The one run folder below ``folder``."""
    found = runs_in(folder)
    assert len(found) == 1, found
    return found[0]


def runs_in(folder: Path) -> list[Path]:
    """All run folders below ``folder``, by name."""
    return sorted(path.parent for path in folder.rglob("config.yaml"))


def summary_of(run: Path) -> dict[str, Any]:
    """What the summary of a run says now, as plain values; {} where there is none, or where it is damaged."""
    summary = read_summary(run)
    return {} if summary is None else summary.model_dump(mode="json")


def write_a_summary(folder: Path, status: str = "finished", **fields: Any) -> None:
    """A summary as a run of plain softmax leaves it; ``fields`` take the place of its own."""
    own = {"status": status, "softmax": "softmax", "seed": 0, "epochs": 4, "steps": 16}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_text(json.dumps({**own, **fields}))


def set_status(run: Path, status: str) -> None:
    """Lets a run's summary say that it ended so: a run that is not "finished" is gone on with."""
    path = run / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "status": status}))


def write_alphabets(folder: Path, characters: dict[str, int], drawings: int, size: int = 21) -> None:
    """Writes ``<alphabet>/character<n>/<drawing>.png`` of random strokes: so many characters of each alphabet."""
    import torch

    generator = torch.Generator().manual_seed(0)
    for alphabet, count in characters.items():
        for number in range(1, count + 1):
            own = folder / alphabet / f"character{number:02}"
            own.mkdir(parents=True)
            for drawing in range(1, drawings + 1):
                pixels = (torch.rand(size, size, generator=generator) > 0.2).numpy()
                Image.fromarray(pixels).save(own / f"{drawing:02}.png")


def held_by(folder: Path, holder: Holder, duration: float | None = None) -> Path:
    """Leaves the files of a holder in a folder, as filelock and the lab write them; the folder.

    Args:
        holder: who has it.
        duration: seconds of its lease; None: those of the lab.
    """
    folder.mkdir(parents=True, exist_ok=True)
    told = {"pid": holder.pid, "host": holder.host, "mode": "lease", "token": holder.token}
    told["duration"] = duration or lock.LEASE
    lines = ["filelock/2", *(f"{name}={value}" for name, value in told.items())]
    (folder / "draft").write_text("".join(f"{line}\n" for line in lines))
    # Who takes a folder over makes a new file.
    os.replace(folder / "draft", folder / lock.LEASED)
    (folder / lock.HOLDER).write_text(json.dumps(asdict(holder)))
    return folder


def newest(run: Path) -> dict:
    """The newest checkpoint of a run, loaded as plain values."""
    import torch

    return torch.load(sorted((run / "checkpoints").glob("last-*.ckpt"))[-1], weights_only=True)


def assert_same_weights(one: dict, other: dict) -> None:
    """Two checkpoints are of the same step, and of the same weights bit for bit."""
    import torch

    assert one["global_step"] == other["global_step"]
    assert one["state_dict"].keys() == other["state_dict"].keys()
    for name, tensor in one["state_dict"].items():
        assert torch.equal(tensor, other["state_dict"][name]), name


def assert_resumed_alike(folder: Path, *overrides: str) -> None:
    """A run that goes on from the checkpoint before its last one ends with the same weights."""
    run = train_in(folder, *overrides)
    whole = newest(run)
    sorted((run / "checkpoints").glob("last-*.ckpt"))[-1].unlink()
    assert 0 < newest(run)["global_step"] < whole["global_step"]
    set_status(run, "stopped")
    train_in(folder, *overrides)
    assert_same_weights(newest(run), whole)


@pytest.fixture(autouse=True)
def modules_of_their_own() -> Iterator[None]:
    """Tests do as pages tell a reader, who calls modules my_rules and the like: each test has its own."""
    yield
    for name in [name for name in sys.modules if name.startswith("my_")]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def handlers_as_before() -> Iterator[None]:
    """A test that leaves another handler of a signal fails, and not one that comes after it."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.getsignal(number) for number in signals]
    yield
    after = [signal.getsignal(number) for number in signals]
    for number, handler in zip(signals, before, strict=True):
        signal.signal(number, handler)
    assert after == before


def small_gpt2(folder: Path) -> None:
    """Saves a GPT-2 of two layers with random weights, and a tokenizer of single bytes and a few words."""
    import torch

    tokenizers = pytest.importorskip("tokenizers.implementations", reason="the extra language is not installed")
    transformers = pytest.importorskip("transformers", reason="the extra language is not installed")
    folder.mkdir()
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    words = ["To see is to forget the name of the thing one sees."]
    tokenizer.train_from_iterator(words, vocab_size=280, special_tokens=["<|endoftext|>"], show_progress=False)
    tokenizer.save_model(str(folder))
    transformers.GPT2Tokenizer.from_pretrained(folder).save_pretrained(folder)
    torch.manual_seed(0)
    shape = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 96, "initializer_range": 0.5}
    config = transformers.GPT2Config(vocab_size=300, **shape, bos_token_id=0, eos_token_id=0)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
