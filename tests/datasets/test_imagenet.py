"""The ImageNet-100 task on a folder of a few plain images."""

from __future__ import annotations

import multiprocessing
import pickle
import shutil
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import assert_same_weights, lab_train, newest, runs_in, set_status, train_in
from PIL import Image

from lab.config.check import check_arguments
from lab.console import LabError
from lab.datasets.folder import read_image, rgb
from lab.datasets.imagenet import ImageNetData
from lab.datasets.loading import StepLoader
from scripts.scenes import picture

DOGS = ("n02085620", "n02086240")
CLASSES = (*DOGS, "n01558993", "n03062245")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Images of one grey each: 20 class + number, so that a tile tells what it shows."""
    root = tmp_path_factory.mktemp("imagenet")
    for split in ("train", "val"):
        for label, name in enumerate(sorted(CLASSES)):
            (root / split / name).mkdir(parents=True)
            for number in range(5):
                grey = np.full((60, 80, 3), 50 * label + 5 * number + 10, dtype=np.uint8)
                Image.fromarray(grey).save(root / split / name / f"{number}.png")
    return root


def plain(folder: Path, **options) -> ImageNetData:
    """Without what changes a grey: colour jitter, RandAugment, erasing."""
    still = {"auto_augment": None, "color_jitter": 0.0, "random_erasing": 0.0, "workers": 0}
    sizes = {"batch_size": 50, "tile_size": 16, "epoch_size": 2000, "validation_size": 100}
    return ImageNetData(str(folder), **{**still, **sizes, **options})


def test_labels_follow_from_the_pixels(folder: Path) -> None:
    data = plain(folder)
    same = 0
    for step in range(40):
        batch = data.composed(data.draw_train(0, step), normalise=False)
        greys = (255 * batch["x"]).round()
        tiles = torch.stack([greys[:, 0, 8, 8], greys[:, 0, 8, 24], greys[:, 0, 24, 8], greys[:, 0, 24, 24]], 1).long()
        kinds = (tiles - 10) // 50
        for (first, right, left, second), tile, label in zip(
            kinds.tolist(), tiles.tolist(), batch["y"].tolist(), strict=True
        ):
            assert sorted(CLASSES)[first] in DOGS
            assert sorted(CLASSES)[second] in DOGS
            assert label == (right if tile[0] == tile[3] else left)
            same += tile[0] == tile[3]
    assert abs(same / 2000 - 0.5) < 0.045


def test_batches_are_a_function_of_their_place_and_augmented_one_by_one(folder: Path) -> None:
    lively = {"auto_augment": "rand-m9-mstd0.5-inc1", "color_jitter": 0.3, "random_erasing": 0.25}
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one = plain(folder, **lively).draw_train(2, 3)
    assert torch.equal(before, torch.get_rng_state()), "looking must not move the global generator"
    torch.manual_seed(6)
    other = plain(folder, **lively).draw_train(2, 3)
    assert torch.equal(one["x"], other["x"])
    assert one["x"].shape == (50, 3, 32, 32)
    assert not torch.equal(one["x"], plain(folder, **lively, seed=1).draw_train(2, 3)["x"])
    match = one["latents"]["image_1"] == one["latents"]["image_2"]
    assert match.any()
    first, second = one["x"][match][:, :, :16, :16], one["x"][match][:, :, 16:, 16:]
    assert not torch.equal(first, second), "each of the four images is augmented by itself"


def test_the_plateau_is_told_without_reading_a_picture(folder: Path, monkeypatch) -> None:
    data = plain(folder, batch_size=40)
    batches = [data.draw_validation(index) for index in range(3)]
    labels = torch.cat([batch["y"] for batch in batches])
    targets = [torch.cat([batch["latents"][name] for batch in batches]) for name in ("target_1", "target_2")]
    monkeypatch.setattr(data.scenes("val"), "_canvas", None)
    assert data.prior_accuracy() == max((target == labels).double().mean().item() for target in targets)


@pytest.mark.parametrize("policy", ["rand-m9-mstd0.5-inc1", "v0-mstd5"])
def test_an_image_of_no_bits_is_black(folder: Path, policy: str) -> None:
    """DeiT's policy asks for one now and then, by a random magnitude."""
    data = plain(folder, auto_augment=policy)
    image = Image.new("RGB", (8, 8), (200, 3, 90))
    for one in data.transforms["train"].transforms:
        ops = getattr(one, "ops", [op for few in getattr(one, "policy", []) for op in few])
        posters = [op for op in ops if op.name.startswith("Posterize")]
        for op in posters:
            assert np.asarray(op.aug_fn(image, 0, **op.kwargs)).max() == 0
            assert np.asarray(op.aug_fn(image, 1, **op.kwargs)).tolist()[0][0] == [128, 0, 0]
        if ops:
            assert posters
            break
    else:
        raise AssertionError("timm keeps its operations elsewhere now")


def test_an_epoch_walks_through_all_images(folder: Path) -> None:
    data = plain(folder, epoch_size=None, batch_size=10)
    assert len(data.train_dataloader()) == 2
    seen = [data.draw_train(0, step)["latents"]["target_1"] for step in range(2)]
    assert torch.cat(seen).bincount().tolist() == [5, 5, 5, 5]
    assert sum(len(data.draw_validation(i)["y"]) for i in range(len(data.val_dataloader()))) == 100


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"dogs": ("n02085620", "n02085620")}, ValueError, "dogs"),
        ({"dogs": ("n02085620", "cat")}, FileNotFoundError, "no class folder cat"),
        (
            {"auto_augment": "rand-m9-mstd0.5-inc1", "color_jitter": 0.9},
            ValueError,
            "color_jitter=0.9 would not be used",
        ),
        ({"tile_size": 0}, LabError, "tile_size"),
        ({"epoch_size": 0}, LabError, "epoch_size=0 is wrong: it must be greater than 0"),
        ({"workers": -1}, LabError, "workers=-1 is wrong: it must be at least 0"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, options: dict, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        check_arguments(ImageNetData, options, "data")
        plain(folder, **options).draw_train(0, 0)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no images in .*nowhere.*data\.root"):
        plain(tmp_path / "nowhere").setup()


def test_layouts_that_images_come_in_are_told_apart(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    other = (tmp_path / "val" / CLASSES[2]).rename(tmp_path / "val" / "cat")
    with pytest.raises(ValueError, match="must hold the same classes; only one of them holds cat, n01558993"):
        plain(tmp_path).setup()
    for path in other.iterdir():
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"/val: Found no valid file for the classes cat.* as <class>/<image>$"):
        plain(tmp_path).setup()
    shutil.rmtree(tmp_path / "train")
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "n01440764.tar").touch()
    with pytest.raises(FileNotFoundError, match=r"/train: .* as <class>/<image>; unpack n01440764\.tar and the like"):
        plain(tmp_path).draw_train(0, 0)
    (tmp_path / "train" / "n01440764.tar").rename(tmp_path / "train" / "ILSVRC2012_val_00000001.JPEG")
    with pytest.raises(FileNotFoundError, match=r"<class>/<image>; 1 images there are in no class's folder"):
        plain(tmp_path).draw_train(0, 0)


def test_greys_of_more_than_8_bit(tmp_path: Path) -> None:
    grey = np.linspace(0, 65535, 16).astype(np.uint16).reshape(4, 4)
    Image.fromarray(grey).save(tmp_path / "16.png")
    Image.fromarray(grey.astype(np.int32)).save(tmp_path / "32.tiff")
    (tmp_path / "16.pgm").write_bytes(b"P5 4 4 65535\n" + grey.astype(">u2").tobytes())
    for name in ("16.png", "16.pgm"):
        assert np.array_equal(np.asarray(read_image(rgb, str(tmp_path / name)))[..., 0], grey >> 8)
    with pytest.raises(ValueError, match=r"32\.tiff cannot be read as an image: it has more than 16 bits a pixel"):
        read_image(rgb, str(tmp_path / "32.tiff"))


@pytest.mark.pictures
def test_its_scenes_are_drawn_with_and_without_augmentation(folder: Path, tmp_path: Path) -> None:
    options = [f"data.root={folder}", f"data.dogs=[{','.join(DOGS)}]", "data.tile_size=16"]
    assert picture("imagenet100", options, tmp_path, count=3).stat().st_size > 5000


def test_it_trains_from_the_command_line_with_loader_processes(folder: Path, tmp_path: Path) -> None:
    small = ["data.tile_size=16", "data.batch_size=8", "data.epoch_size=16", "data.validation_size=8", "data.workers=2"]
    model = ["model.depth=1", "model.heads=2", "model.head_dim=8", "model.patch_size=8"]
    done = lab_train(
        "experiment=imagenet100",
        f"data.root={folder}",
        *small,
        *model,
        "trainer.max_epochs=2",
        "threads=1",
        folder=tmp_path,
    )
    assert "finished" in done.stderr
    assert list(tmp_path.rglob("pictures/scenes.png"))


def _place(epoch: int, step: int) -> torch.Tensor:
    return torch.tensor([epoch, step])


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_an_epoch_is_opened_before_its_place_is_known(workers: int) -> None:
    reached = [5]  # the end of the epoch before, as Lightning has it when it opens the epoch of a resumed run
    loader = StepLoader(_place, 5, lambda: reached[0], workers)
    batches = iter(loader)
    loader.sampler.set_epoch(2)  # type: ignore[attr-defined]
    reached[0] = 3
    assert [one.tolist() for one in batches] == [[2, 3], [2, 4]]


def test_a_loader_process_that_is_not_forked_gets_the_data_without_their_trainer(folder: Path) -> None:
    """A trainer holds what cannot be pickled; the process keeps its place among those that train."""
    data = plain(folder, batch_size=20)
    data.trainer = SimpleNamespace(world_size=2, global_rank=1, held=lambda: None)  # type: ignore[assignment]
    for loader in (data.train_dataloader(), data.val_dataloader()):
        assert isinstance(loader, StepLoader)
        sent = pickle.loads(pickle.dumps(loader.dataset))
        assert torch.equal(sent[1, 1]["x"], loader.dataset[1, 1]["x"])
    there = pickle.loads(pickle.dumps(data))
    assert (there.trainer, there.world_size, there.rank) == (None, 2, 1)
    assert (there.alone().world_size, there.alone().rank) == (1, 0)


@pytest.mark.skipif(not hasattr(signal, "sigwaitinfo"), reason="macOS does not tell who sends a signal")
def test_a_loader_process_outlives_a_signal_to_all_of_a_job_or_terminal() -> None:
    before = set(multiprocessing.active_children())
    batches = iter(StepLoader(_place, 40, workers=1))
    first = next(batches)
    (worker,) = set(multiprocessing.active_children()) - before
    for name in ("TERM", "INT"):
        subprocess.run(["kill", f"-{name}", str(worker.pid)], check=True)
    assert [first.tolist(), *(next(batches).tolist() for _ in range(19))] == [[0, step] for step in range(20)]
    worker.terminate()  # by its parent
    worker.join(10)
    assert worker.exitcode == 0


@pytest.mark.slow
def test_a_run_with_loader_processes_goes_on_with_its_own_batches(folder: Path, tmp_path: Path) -> None:
    small = ["data.tile_size=16", "data.batch_size=6", "data.epoch_size=24", "data.validation_size=12"]
    model = ["model.depth=1", "model.heads=2", "model.head_dim=8", "model.patch_size=8", "trainer.max_epochs=3"]
    more = ["checkpoints.every_n_steps=2", "checkpoints.keep=9", "trainer=cpu", f"data.root={folder}", "data.workers=1"]
    typed = ["experiment=imagenet100", *small, *model, *more, f"data.dogs=[{','.join(DOGS)}]", "logger=csv_only"]
    whole = train_in(tmp_path / "whole", *typed)
    for step in (4, 6):  # at the end of the first epoch, and within the second
        folder_of = tmp_path / str(step)
        shutil.copytree(tmp_path / "whole", folder_of)
        (run,) = runs_in(folder_of)
        for path in (run / "checkpoints").glob("last-*.ckpt"):
            if int(path.stem.removeprefix("last-")) > step:
                path.unlink()
        set_status(run, "stopped")
        train_in(folder_of, *typed)
        assert_same_weights(newest(run), newest(whole))
