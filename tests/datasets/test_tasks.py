"""Every task's label against a brute-force rule that looks at the tiles themselves, scene by scene."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from lab.config.compose import CONFIGS
from lab.datasets.folder import FolderSource
from lab.datasets.sources import Images, Split
from lab.datasets.tasks.check import check_task
from lab.datasets.tasks.cifar_task_1 import CifarTask1
from lab.datasets.tasks.color_or_fashion import COLORS, ColorOrFashion
from lab.datasets.tasks.digit_grouping import DigitGrouping
from lab.datasets.tasks.main import MainTask
from lab.datasets.tasks.no_position import NoPosition
from lab.datasets.tasks.same_color import SameColor
from lab.datasets.tasks.top_if_above import TopIfAbove
from lab.datasets.vision import VisionData

TL, TR, BL, BR = range(4)


class Objects:
    """A stand-in for CIFAR-10: small colour images of three classes, of which one is never used."""

    def load(self, split: str) -> Images:
        generator = torch.Generator().manual_seed(len(split))
        labels = torch.arange(90) % 3
        pixels = torch.randint(256, (90, 3, 32, 32), generator=generator, dtype=torch.uint8)
        return Images(pixels, labels, ("bird", "airplane", "automobile"), "bilinear")


@pytest.fixture
def sources(drawn_sources: dict) -> dict:
    return {**drawn_sources, "objects": Objects()}


def seen(data: VisionData, draws: dict) -> list[list[SimpleNamespace]]:
    """What an onlooker sees on the tiles of each scene: source, class, colour, whether there is anything."""
    bank = data.bank("train")
    starts = {name: int(bank.walk(name, torch.tensor([0]))) for name in data.source}

    def source_of(index: int) -> str:
        return max((start, name) for name, start in starts.items() if start <= index)[1]

    pixels = data.composed(draws, normalise=False)["x"]
    side = data.tile_size
    scenes = []
    for scene, images, colors in zip(pixels, draws["images"].tolist(), draws["colors"], strict=True):
        tiles = []
        for tile, index in enumerate(images):
            row, column = divmod(tile, 2)
            patch = scene[:, row * side : (row + 1) * side, column * side : (column + 1) * side]
            source, kind = source_of(index), int(bank.labels[index])
            tiles.append(SimpleNamespace(source=source, kind=kind, color=colors[tile], lit=bool(patch.abs().max() > 0)))
        scenes.append(tiles)
    return scenes


def of(tiles: list[SimpleNamespace], source: str) -> list[SimpleNamespace]:
    return [tile for tile in tiles if tile.source == source]


def nearest(color: torch.Tensor) -> int:
    return int((torch.tensor(list(COLORS.values())) - color).norm(dim=1).argmin())


def red(tile: SimpleNamespace) -> bool:
    return bool(tile.color[0] > tile.color[2])


def main(t):
    return t[TR].kind if t[TL].kind == t[BR].kind else t[BL].kind


def no_position(t):
    top, bottom = t[:2], t[2:]
    match = of(top, "digits")[0].kind == of(bottom, "digits")[0].kind
    return of(top if match else bottom, "garments")[0].kind


def digit_grouping(t):
    return t[TR].kind if (t[TL].kind <= 2) == (t[BR].kind <= 2) else t[BL].kind


def same_color(t):
    return t[TR].kind if red(t[TL]) == red(t[BR]) else t[BL].kind


def top_if_above(t):
    lit = [place for place, tile in enumerate(t) if tile.lit]
    assert len(lit) == 2
    assert lit[0] in (TL, TR)
    assert lit[1] in (BL, BR)
    return t[lit[0]].kind if lit[0] % 2 == lit[1] % 2 else t[lit[1]].kind


def color_or_fashion(t):
    return t[TR].kind if t[TL].kind == t[BR].kind else nearest(t[TR].color)


def color_or_fashion_apart(t):
    return t[TR].kind if t[TL].kind == t[BR].kind else 10 + nearest(t[TR].color)


def cifar_task_1(t):
    first, second = of(t, "objects")
    return of(t, "digits")[0].kind if first.kind == second.kind else of(t, "garments")[0].kind


def cifar_task_1_apart(t):
    first, second = of(t, "objects")
    return of(t, "digits")[0].kind if first.kind == second.kind else 10 + of(t, "garments")[0].kind


CASES = {
    "main": (MainTask(), main),
    "main_prior": (MainTask(top_right_probability=0.65), main),
    "no_position": (NoPosition(), no_position),
    "digit_grouping": (DigitGrouping(), digit_grouping),
    "digit_grouping_prior": (DigitGrouping(top_right_probability=0.65), digit_grouping),
    "same_color": (SameColor(), same_color),
    "top_if_above": (TopIfAbove(), top_if_above),
    "color_or_fashion": (ColorOrFashion(), color_or_fashion),
    "color_or_fashion_apart": (ColorOrFashion(separate_labels=True), color_or_fashion_apart),
    "cifar_task_1": (CifarTask1(), cifar_task_1),
    "cifar_task_1_apart": (CifarTask1(separate_labels=True), cifar_task_1_apart),
}


def test_every_ready_task_has_a_rule_here() -> None:
    missing = {path.stem for path in (CONFIGS / "data" / "task").glob("*.yaml")} - CASES.keys()
    assert not missing, f"give CASES of {__file__} these tasks, each with a rule that looks at the tiles: {missing}"


@pytest.mark.parametrize("name", CASES)
def test_labels_follow_the_rule_that_an_onlooker_would_apply(name: str, sources: dict) -> None:
    task, rule = CASES[name]
    data = VisionData(task, sources, batch_size=500, epoch_size=3000)
    locations = []
    for step in range(6):
        draws = data.draw_train(0, step)
        batch = data.composed(draws)
        assert batch["y"].tolist() == [rule(tiles) for tiles in seen(data, draws)]
        locations.append(batch["latents"]["target_location"])
    share = (torch.cat(locations) == 0).double().mean().item()
    # Four standard deviations of 3,000 coins.
    wanted = 0.65 if "prior" in name else 0.5
    assert abs(share - wanted) < 0.037
    assert int(batch["y"].max()) < len(data.class_names) == data.model_arguments()["num_classes"]


@pytest.mark.parametrize("name", CASES)
def test_latents_say_what_stands_where(name: str, sources: dict) -> None:
    task, _ = CASES[name]
    data = VisionData(task, sources, batch_size=300, epoch_size=300)
    draws = data.draw_train(0, 0)
    latents = draws["latents"]
    chosen = torch.where(latents["target_location"] == 0, latents["target_1"], latents["target_2"])
    apart = torch.zeros(300, dtype=torch.int64)
    if "apart" in name:
        apart = 10 * latents["target_location"]
    assert torch.equal(task.label(latents), chosen + apart)
    kinds = data.bank("train").labels[draws["images"]]
    for part in ("indicator_1", "indicator_2", "target_1", "target_2"):
        if f"{part}_tile" not in latents or (part.startswith("indicator") and name == "same_color"):
            continue
        if part == "target_2" and name.startswith("color_or_fashion"):
            continue
        stands = kinds.gather(1, latents[f"{part}_tile"].unsqueeze(1)).squeeze(1)
        assert torch.equal(stands, latents[part]), part


@pytest.mark.parametrize("name", CASES)
def test_the_check_for_tasks_of_ones_own_passes(name: str, sources: dict) -> None:
    check_task(CASES[name][0], sources, scenes=2000)


def test_no_position_swaps_half_of_the_rows(sources: dict) -> None:
    data = VisionData(NoPosition(), sources, batch_size=2000, epoch_size=2000)
    latents = data.draw_train(0, 0)["latents"]
    for part, at in (("indicator_1", 1), ("target_2", 3)):
        share = (latents[f"{part}_tile"] == at).double().mean().item()
        assert abs(share - 0.5) < 0.05
    assert torch.equal(latents["indicator_1_tile"] ^ 1, latents["target_1_tile"])
    assert torch.equal(latents["indicator_2_tile"] ^ 1, latents["target_2_tile"])


def test_black_tiles_are_black(sources: dict) -> None:
    data = VisionData(TopIfAbove(), sources, batch_size=200, epoch_size=200)
    draws = data.draw_train(0, 0)
    assert ((draws["colors"] == 0).all(-1).sum(1) == 2).all()


def test_cifar_tiles_are_shuffled(sources: dict) -> None:
    data = VisionData(CifarTask1(), sources, batch_size=4000, epoch_size=4000)
    latents = data.draw_train(0, 0)["latents"]
    tiles = torch.stack([latents[f"{p}_tile"] for p in ("indicator_1", "indicator_2", "target_1", "target_2")], 1)
    assert torch.equal(tiles.sort(1).values, torch.arange(4).expand(4000, 4))
    shares = torch.stack([(tiles == tile).double().mean(0) for tile in range(4)])
    assert (shares - 0.25).abs().max() < 0.03
    assert set(latents["indicator_1"].tolist()) == {0, 2}, "airplanes are no indicators"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: DigitGrouping(groups=[[1, 2]]), "groups"),
        (lambda: DigitGrouping(groups=[[1, 2], [2, 3]]), "groups"),
        (lambda: DigitGrouping(groups=[[1, 2], [3, 10**13]]), "no source has 100,000 classes"),
        (lambda: ColorOrFashion().label_names({"garments": tuple("abc")}), "as many garments as colours.* 3 and 10"),
        (
            lambda: CifarTask1().label_names({"digits": tuple("0123456789"), "garments": tuple("abc")}),
            "as many digits as garments.* 10 and 3",
        ),
        (
            lambda: CifarTask1(separate_labels=True).label_names({"digits": tuple("abc"), "garments": tuple("abc")}),
            "as many digits as labels of a target.* 3 and 10",
        ),
        (lambda: ColorOrFashion(digits=(1,)), "digits"),
        (lambda: CifarTask1(indicators=("bird",)), "indicators"),
    ],
)
def test_options_are_checked(make, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_a_class_that_is_not_there_is_named(sources: dict) -> None:
    data = VisionData(CifarTask1(indicators=("bird", "frog")), sources, batch_size=4, epoch_size=4)
    with pytest.raises(ValueError, match="no \\['frog'\\]; it has bird, airplane, automobile"):
        data.draw_train(0, 0)
    # One class of two is there: z would always be the same.
    for task in (MainTask(digits=(1, 12)), DigitGrouping(groups=[[1, -1], [3, 4]]), ColorOrFashion(digits=(1, 12))):
        with pytest.raises(ValueError, match=r"source 'digits' has no image of class (12|-1)"):
            VisionData(task, sources, batch_size=4, epoch_size=4).setup()


def test_both_splits_have_the_same_classes(sources: dict) -> None:
    class Fewer:
        def load(self, split: Split) -> Images:
            images = sources["garments"].load(split)
            return replace(images, class_names=(*images.class_names[:9], split))

    data = VisionData(MainTask(), {**sources, "garments": Fewer()}, batch_size=4, epoch_size=4)
    with pytest.raises(ValueError, match="train and test images of the source 'garments' are of different classes"):
        data.setup()


def test_images_come_from_a_folder(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for label, name in enumerate(("automobile", "bird")):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for number in range(2):
                grey = np.full((40 if number else 32, 32, 3), 100 * label + number, dtype=np.uint8)
                Image.fromarray(grey).save(folder / f"{number}.png")
    images = FolderSource(str(tmp_path)).load("train")
    assert images.class_names == ("automobile", "bird")
    assert images.labels.tolist() == [0, 0, 1, 1]
    assert images.pixels.shape == (4, 3, 32, 32)
    assert images.pixels[:, 0, 5, 5].tolist() == [0, 1, 100, 101]
    with pytest.raises(FileNotFoundError, match=r"no things in .*elsewhere.*or ask around"):
        FolderSource(str(tmp_path / "elsewhere"), name="things", way_out="ask around").load("train")
    (tmp_path / "train" / "bird" / "0.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"0\.png cannot be read as an image"):
        FolderSource(str(tmp_path)).load("train")


@pytest.mark.real_data
def test_real_cifar_folder_gives_scenes(real_data: Path, drawn_sources: dict) -> None:
    objects = FolderSource(str(real_data / "cifar10"), name="CIFAR-10")
    data = VisionData(CifarTask1(), {**drawn_sources, "objects": objects}, batch_size=64, epoch_size=64)
    draws = data.draw_train(0, 0)
    assert data.bank("train").size("objects") == 10_000
    assert data.composed(draws)["y"].tolist() == [cifar_task_1(tiles) for tiles in seen(data, draws)]


@pytest.mark.parametrize("name", CASES)
def test_the_plateau_is_that_of_always_reading_the_same_target(name: str, sources: dict) -> None:
    data = VisionData(CASES[name][0], sources, batch_size=500, epoch_size=3000, validation_size=4000)
    prior = 0.65 if "prior" in name else 0.5
    # The other target has the right label by luck: one class in ten, unless both kinds have labels of their own.
    lucky = 0.0 if name.endswith("_apart") else 0.1
    assert data.prior_accuracy() == pytest.approx(prior + (1 - prior) * lucky, abs=0.032)
