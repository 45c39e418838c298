"""A run folder has one holder, also where flock does not reach: holders on other nodes are played by their files."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from types import FrameType

import filelock
import pytest
from conftest import held, held_by, summary_of, write_a_summary

from lab.console import LabError
from lab.runs import lock
from lab.runs.folder import Run
from lab.runs.lock import HOLDER, LEASED, FolderLock, Holder, is_held, read_holder

ELSEWHERE = Holder(token="theirs", host="node07", pid=4711, born=0.0, job="12_3")


@pytest.fixture(autouse=True)
def in_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "HEARTBEAT", 0.05)
    monkeypatch.setattr(lock, "LEASE", 0.6)
    monkeypatch.setattr(lock, "SETTLE", 0.1)


@pytest.fixture
def no_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without flock."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(filelock.UnixFileLock, "_acquire", refuse)


@pytest.fixture(params=["local disk", "cluster"])
def disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system where files can exchange their names, and one where they cannot, such as NFS."""
    if request.param == "cluster":
        monkeypatch.setattr("filelock._soft.exchange_names", lambda source, target: False, raising=False)


def beating(folder: Path) -> threading.Event:
    """Touches the lease as its holder would, until the event is set."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(0.05):
            os.utime(folder / LEASED)

    threading.Thread(target=beat, daemon=True).start()
    return stop


def test_a_holder_says_who_it_is_and_leaves_nothing_behind(tmp_path: Path) -> None:
    mine = FolderLock(tmp_path)
    mine.acquire()
    holder = read_holder(tmp_path)
    assert holder is not None and holder.pid == os.getpid() and holder.here and holder.alive()
    assert is_held(tmp_path)
    with pytest.raises(LabError, match=rf"another process is running in .*process {os.getpid()} on "):
        FolderLock(tmp_path).acquire()
    mine.release()
    assert not is_held(tmp_path) and not (tmp_path / HOLDER).exists() and not (tmp_path / LEASED).exists()
    FolderLock(tmp_path).release()  # held by nobody: nothing happens


def test_who_lives_on_another_node_is_not_disturbed(tmp_path: Path) -> None:
    stop = beating(held_by(tmp_path, ELSEWHERE))
    assert is_held(tmp_path)
    with pytest.raises(LabError, match="SLURM job 12_3, process 4711 on node07"):
        FolderLock(tmp_path).acquire()
    stop.set()
    assert read_holder(tmp_path) == ELSEWHERE
    assert not lock._flock(tmp_path).is_locked


@pytest.mark.parametrize("duration", [None, 5.0])
def test_who_died_on_another_node_is_replaced_once_it_was_silent(
    tmp_path: Path, disk: None, duration: float | None
) -> None:
    """Also one of another version of the lab, whose lease was longer."""
    held_by(tmp_path, ELSEWHERE, duration)
    # Neither a clock that is behind nor one that is ahead makes it look alive or dead.
    os.utime(tmp_path / LEASED, (time.time() + 9999, time.time() + 9999))
    before = time.monotonic()
    mine = FolderLock(tmp_path)
    mine.acquire()
    assert time.monotonic() - before >= lock.LEASE
    holder = read_holder(tmp_path)
    assert holder is not None and holder.here
    mine.release()


def test_without_flock_the_record_alone_excludes(tmp_path: Path, no_flock: None) -> None:
    mine = FolderLock(tmp_path)
    mine.acquire()
    assert is_held(tmp_path)
    with pytest.raises(LabError, match="another process is running in"):
        FolderLock(tmp_path).acquire()
    mine.release()
    assert not is_held(tmp_path)
    # A later process of the same number is not the holder.
    held_by(tmp_path, Holder("dead", socket.gethostname(), os.getpid(), 1.0, None))
    assert not is_held(tmp_path)
    again = FolderLock(tmp_path)
    again.acquire()
    again.release()


def test_of_two_that_begin_at_the_same_moment_one_passes(tmp_path: Path, no_flock: None) -> None:
    """The other has taken the lease, and has not yet written who it is."""
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    first._claim(kernel=False)
    with pytest.raises(LabError, match="another process"):
        second._claim(kernel=False)
    assert filelock.SoftFileLease(tmp_path / LEASED).owner.token == first._lease.token
    assert [path.name for path in tmp_path.iterdir()] == [LEASED]
    first.release()


@pytest.mark.parametrize("free", [True, False])
def test_of_four_that_take_a_folder_at_the_same_moment_one_passes(
    tmp_path: Path, no_flock: None, disk: None, monkeypatch: pytest.MonkeyPatch, free: bool
) -> None:
    """A free folder of a file system without hard links, or one whose holder is silent."""
    if free:
        monkeypatch.setattr(os, "link", no_links)
    else:
        held_by(tmp_path, ELSEWHERE)
    passed, refused = [], []

    def take(one: FolderLock) -> None:
        try:
            one.acquire()
            passed.append(one)
        except LabError as error:
            refused.append(error)

    contenders = [threading.Thread(target=take, args=[FolderLock(tmp_path)]) for _ in range(4)]
    for thread in contenders:
        thread.start()
    for thread in contenders:
        thread.join()
    assert (len(passed), len(refused)) == (1, 3)
    holder = read_holder(tmp_path)
    assert holder is not None and holder.token == passed[0]._lease.token
    passed[0].release()


def no_links(*_: object) -> None:
    raise OSError(95, "Operation not supported")


def test_who_was_taken_over_notices_and_leaves_the_other_alone(tmp_path: Path) -> None:
    mine = FolderLock(tmp_path)
    mine.acquire()
    held_by(tmp_path, ELSEWHERE)
    deadline = time.monotonic() + 10
    while not mine.lost and time.monotonic() < deadline:
        time.sleep(0.01)
    assert mine.lost
    mine.release()
    assert read_holder(tmp_path) == ELSEWHERE


RECORDS = (b"{half", b'{"token": "\xb5"}', b'{"token": 1}', b"[]")


def test_a_damaged_record_is_waited_out(tmp_path: Path, disk: None) -> None:
    cases = list(product(RECORDS, ("filelock/2\npid=1", "")))

    def wait_out(number: int) -> bool:
        folder = tmp_path / str(number)
        folder.mkdir()
        record, content = cases[number]
        (folder / HOLDER).write_bytes(record)
        (folder / LEASED).write_text(content)
        mine = FolderLock(folder)
        mine.acquire()
        mine.release()
        return True

    with ThreadPoolExecutor(len(cases)) as side_by_side:  # each waits for the length of a lease
        assert all(side_by_side.map(wait_out, range(len(cases))))


@pytest.mark.parametrize(("damaged", "left"), [(None, 0), *product((HOLDER, LEASED), (0, 30))])
def test_who_died_on_this_machine_is_replaced_at_once(
    tmp_path: Path, disk: None, monkeypatch: pytest.MonkeyPatch, damaged: str | None, left: int
) -> None:
    """An empty file of it, or half of one, costs no lease either."""
    monkeypatch.setattr(lock, "LEASE", 60.0)
    monkeypatch.setattr(lock, "HEARTBEAT", 15.0)
    held_by(tmp_path, Holder("dead", socket.gethostname(), 2**22 + 1, 0.0, None))
    if damaged is not None:
        (tmp_path / damaged).write_bytes((tmp_path / damaged).read_bytes()[:left])
    assert not is_held(tmp_path)
    before = time.monotonic()
    mine = FolderLock(tmp_path)
    mine.acquire()
    assert time.monotonic() - before < 10
    mine.release()


def test_the_status_of_a_run_on_another_node(tmp_path: Path) -> None:
    write_a_summary(tmp_path, "running")
    held_by(tmp_path, ELSEWHERE)
    assert summary_of(tmp_path)["status"] == "running"
    old = time.time() - 3 * lock.LEASE
    os.utime(tmp_path / LEASED, (old, old))
    assert summary_of(tmp_path)["status"] == "stopped"


def test_force_leaves_the_holder_where_it_is(tmp_path: Path) -> None:
    run = held(tmp_path / "r")
    assert run.set_aside() is None
    (run.folder / "metrics.csv").write_text("old")
    assert run.set_aside() is not None
    assert read_holder(run.folder) is not None
    run.release()


def test_a_signal_at_any_moment_of_taking_a_folder_leaves_nothing(tmp_path: Path) -> None:
    """In the middle of a library's call, an error would leave half a lock: the signal waits for its end."""

    def end(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code is Run.hold.__code__:
                raise KeyboardInterrupt
            frame = frame.f_back

    def taken_and_left(after: float | None) -> bool:
        """Tells whether the signal came before the folder was taken."""
        run = Run(tmp_path / "runs" / "one")
        if after is not None:
            signal.setitimer(signal.ITIMER_REAL, after)
        try:
            run.hold()
        except KeyboardInterrupt:
            return True
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        run.take_back()
        return False

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)}
    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    try:
        begun = time.perf_counter()
        taken_and_left(None)
        took = time.perf_counter() - begun
        early = 0
        for i in range(1, 201):
            early += taken_and_left(took * i / 200)
            assert not list(tmp_path.iterdir()), f"after {i} of 200 of {took:.4f} s"
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert early


@pytest.mark.parametrize("kind", ["FileLock", "SoftFileLease"])
def test_a_signal_waits_until_filelock_has_made_a_lock(kind: str, tmp_path: Path, monkeypatch) -> None:
    """Else a lock of its own would stay taken, and another thread, such as that of a lease, wait for it for ever."""
    sound, made = getattr(lock, kind), []

    def disturbed(*arguments: object, **options: object) -> object:
        signal.raise_signal(signal.SIGINT)
        made.append(sound(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(lock, kind, disturbed)
    with pytest.raises(KeyboardInterrupt):
        FolderLock(tmp_path)
    assert len(made) == 1


def test_to_ask_for_the_holder_of_a_folder_makes_none(tmp_path: Path) -> None:
    assert not is_held(tmp_path / "runs" / "one")
    FolderLock(tmp_path / "runs" / "one").release(remove=True)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_can_no_longer_be_written_is_let_go_of(tmp_path: Path, monkeypatch) -> None:
    lock = FolderLock(tmp_path / "run")
    lock.acquire()

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        lock.release()
    assert not is_held(tmp_path / "run")
