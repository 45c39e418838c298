import os
from pathlib import Path

import numpy as np
import pytest
import torch

from lab.config.check import check_arguments
from lab.config.compose import compose_config
from lab.console import LabError
from lab.datasets import drawn as drawing
from lab.datasets.cache import cache, write_arrays
from lab.datasets.drawn import DrawnDigits, DrawnGarments

KINDS = [DrawnDigits, DrawnGarments]


@pytest.fixture(scope="module", params=KINDS)
def drawn(request):
    source = request.param(train_size=6000, test_size=1000)
    return source.load("train"), source.load("test")


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_draws_the_same_images(kind) -> None:
    first = kind(seed=1, train_size=50, test_size=20).load("train")
    assert torch.equal(first.pixels, kind(seed=1, train_size=50, test_size=20).load("train").pixels)
    assert not torch.equal(first.pixels, kind(seed=2, train_size=50, test_size=20).load("train").pixels)


@pytest.mark.parametrize("kind", KINDS)
def test_drawing_leaves_the_global_generator_alone(kind) -> None:
    state = torch.get_rng_state()
    kind(train_size=20, test_size=20).load("test")
    assert torch.equal(state, torch.get_rng_state())


def test_classes_are_balanced_and_images_fill_the_grey_scale(drawn) -> None:
    train, test = drawn
    assert train.labels.bincount().tolist() == [600] * 10
    assert train.pixels.shape == (6000, 1, 28, 28)
    assert len(train.class_names) == 10
    assert train.pixels.amax((1, 2, 3)).min() > 60
    assert not torch.equal(train.pixels[:1000], test.pixels)


def logistic_accuracy(x, y, x_test, y_test) -> float:
    """The strongest linear classifier: a ridge fit is far weaker and would hide images that are too easy."""
    weights = torch.zeros(x.shape[1], 10, requires_grad=True)
    optimiser = torch.optim.LBFGS([weights], max_iter=80, line_search_fn="strong_wolfe")

    def loss():
        optimiser.zero_grad()
        value = torch.nn.functional.cross_entropy(x @ weights, y) + 1e-4 * weights.square().sum()
        value.backward()
        return value

    optimiser.step(loss)
    return ((x_test @ weights).argmax(1) == y_test).float().mean().item()


def test_no_linear_classifier_solves_them_but_a_neighbour_does(drawn) -> None:
    train, test = drawn
    x, x_test = (torch.cat([s.pixels.flatten(1) / 255.0, torch.ones(len(s.labels), 1)], 1) for s in (train, test))
    linear = logistic_accuracy(x, train.labels, x_test, test.labels)
    neighbour = (train.labels[torch.cdist(x_test, x).argmin(1)] == test.labels).float().mean().item()
    assert 0.3 < linear < 0.85
    assert neighbour > max(0.86, linear + 0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_are_checked(kind) -> None:
    with pytest.raises(LabError, match="test_size=3 is wrong: it must be at least 10"):
        check_arguments(kind, {"test_size": 3}, "data.source.digits")


def test_many_images_are_drawn_once_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(drawing, "_WORTH_KEEPING", 30)
    source = DrawnDigits(seed=1, train_size=40, test_size=20)
    first = source.load("train")
    (file,) = (tmp_path / "eureka-lab" / "drawn").iterdir()
    assert f"drawing 40 digits to train on, once: they are kept in {file.parent}" in capsys.readouterr().err
    source.load("test")  # so few take no time
    DrawnDigits(seed=2, train_size=40, test_size=20).load("train")
    assert len(list(file.parent.iterdir())) == 2
    capsys.readouterr()
    with monkeypatch.context() as patched:
        patched.setattr(DrawnDigits, "_draw", None)
        again = source.load("train")
    assert torch.equal(first.pixels, again.pixels) and torch.equal(first.labels, again.labels)
    assert capsys.readouterr().err == ""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    for damaged in (bytes(content), content[:100], b"", b"PK\x03\x04 no archive"):
        file.write_bytes(damaged)
        assert torch.equal(first.pixels, source.load("train").pixels)
        assert f"{file} cannot be read: drawing 40 digits to train on again" in capsys.readouterr().err


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(drawing, "_WORTH_KEEPING", 30)
    assert len(DrawnDigits(train_size=40, test_size=20).load("train").labels) == 40


def test_debug_fast_draws_few() -> None:
    few = compose_config(["experiment=main_task", "data/source=drawn", "debug=fast"]).data.source
    many = compose_config(["experiment=main_task", "data/source=drawn"]).data.source
    assert few.garments.train_size <= 1000 and few.digits.test_size <= 1000 < many.digits.test_size


def test_kept_arrays_are_for_all_and_old_drafts_do_not_stay(tmp_path: Path) -> None:
    (old := tmp_path / ".x.npz.0a1b2c3d.unfinished").touch()
    os.utime(old, (0, 0))
    (new := tmp_path / ".x.npz.4e5f6a7b.unfinished").touch()
    before = os.umask(0o022)
    try:
        write_arrays(tmp_path / "x.npz", {"a": np.arange(3)})
    finally:
        os.umask(before)
    assert (tmp_path / "x.npz").stat().st_mode & 0o777 == 0o644
    assert sorted(tmp_path.iterdir()) == [new, tmp_path / "x.npz"]


def test_a_draft_that_may_not_be_removed_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (old := tmp_path / ".x.npz.0a1b2c3d.unfinished").touch()
    os.utime(old, (0, 0))
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path == old:
            raise PermissionError(1, "Operation not permitted", str(path))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    write_arrays(tmp_path / "x.npz", {"a": np.arange(3)})
    assert (tmp_path / "x.npz").exists()


def test_without_a_home_the_cache_asks_for_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    with pytest.raises(LabError, match="set XDG_CACHE_HOME"):
        cache()
