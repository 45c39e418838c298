"""Sequences as they are specified, from drawings that are each counted once."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from conftest import write_alphabets
from PIL import Image

from lab.config.check import check_arguments
from lab.console import LabError
from lab.datasets.in_context import alphabets
from lab.datasets.in_context.alphabets import Alphabets, Drawings, TorchvisionAlphabets
from lab.datasets.in_context.data import InContextData
from lab.datasets.in_context.sequences import drawings_of, training_classes, zipf
from lab.datasets.seeding import generator_of


class Given(Alphabets):
    """Characters whose drawings tell by their pixels which they are: [character, drawing, 0, 0] of 2 x 2."""

    def __init__(self, counts: list[int]) -> None:
        self.counts = torch.tensor(counts)

    def load(self, size: int, check=lambda characters, most: None) -> Drawings:
        check(len(self.counts), int(self.counts.max()))
        names = tuple(f"A/{index:02}" for index in range(len(self.counts)))
        pixels = torch.zeros(len(names), int(self.counts.max()), 2, 2, dtype=torch.uint8)
        pixels[:, :, 0, 0] = torch.arange(len(names)).unsqueeze(1)
        pixels[:, :, 0, 1] = torch.arange(pixels.shape[1])
        return Drawings(pixels, self.counts, names)


def data(counts: list[int] | None = None, **options) -> InContextData:
    given = {"image_size": 2, "rare": None, "common": 5, "holdout": 4, "validation_size": 600, "in_weights_size": 300}
    return InContextData(Given(counts or [20] * 30), **{**given, **options})


def seen(made: InContextData, drawn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(classes, drawings, labels), each [B, 9], as the pixels of a batch tell them."""
    batch = made.on_after_batch_transfer(drawn, 0)
    images, labels = batch["x"]
    pixels = (images * 255).round().long()
    own = [made.class_names.index(f"A/{index:02}") for index in range(30)]
    classes = torch.tensor(own)[pixels[..., 0, 0, 0]]
    return classes, pixels[..., 0, 0, 1], torch.cat([labels, batch["y"].unsqueeze(1)], 1)


def test_training_sequences_are_as_specified() -> None:
    made = data(batch_size=2000)
    drawn = made.draw_train(0, 0)
    classes, _, labels = seen(made, drawn)
    assert torch.equal(labels, classes)  # each class has its own label, the same everywhere
    assert classes.max() < made.holdout.start == 26  # none that is held out
    bursty = drawn["latents"]["bursty"].bool()
    assert bursty.float().mean() == pytest.approx(0.5, abs=0.04)
    shown = (classes[:, :8] == classes[:, 8:]).sum(1)
    # Three of the query's class at least where bursty, or six where both ways are of it; else as chance has it.
    assert shown[bursty].min() == 3
    assert (shown[~bursty] == 0).float().mean() == pytest.approx((25 / 26) ** 8, abs=0.04)
    often = torch.stack([(row.bincount(minlength=26) >= 3).sum() for row in classes[bursty][:, :8]])
    assert (often == 2).float().mean() > 0.9  # the other way, too
    # Uniform: of 2,000 x 9 a class has 692 +- 110, as bursts come in threes.
    assert (classes.flatten().bincount(minlength=26) - 692).abs().max() < 150
    # The order of a burst is any: each place is of the query's class alike.
    where = (classes[bursty, :8] == classes[bursty, 8:]).float().mean(0)
    assert (where - where.mean()).abs().max() < 0.06


def test_drawings_of_a_class_come_once_in_a_sequence() -> None:
    classes = torch.randint(3, (4000, 9), generator=generator_of("test"))
    counts = torch.tensor([9, 12, 20])
    drawings = drawings_of(classes, counts, generator_of("drawings"))
    assert (drawings < counts[classes]).all()
    pairs = classes * 100 + drawings
    assert all(len(set(row)) == 9 for row in pairs.tolist())
    # Each drawing is as likely, and those of two classes have nothing to do with each other.
    of_last = drawings[classes == 2].bincount(minlength=20).float()
    assert (of_last / of_last.mean() - 1).abs().max() < 0.1
    apart = classes[:, 0] != classes[:, 1]
    equal = (drawings[apart, 0] == drawings[apart, 1]).float().mean()
    assert 0.05 < equal < 0.11  # 1/12, 1/20 or 1/20 by pair of classes; 0 were they drawn without replacement


def test_common_classes_lead_where_zipf_counts() -> None:
    weights = zipf(5, 1.0)
    assert weights.tolist() == pytest.approx([1 / 5, 1 / 4, 1 / 3, 1 / 2, 1.0])
    classes, bursty = training_classes(4000, weights, 8, 2, 3, 1.0, generator_of("zipf"))
    assert bursty.all()
    share = classes.flatten().bincount(minlength=5) / classes.numel()
    torch.testing.assert_close(share.double(), weights / weights.sum(), atol=0.02, rtol=0)


def test_few_shot_sequences_are_as_specified() -> None:
    made = data()
    few = [batch for batch in made.val_dataloader() if "target_location" in batch["latents"]]
    assert [len(batch["labels"]) for batch in few] == [250, 250, 100]
    for drawn in few:
        classes, drawings, labels = seen(made, drawn)
        assert (classes >= made.holdout.start).all()
        for own, drawing, label in zip(classes.tolist(), drawings.tolist(), labels.tolist(), strict=True):
            assert sorted(label[:8]) == [0] * 4 + [1] * 4  # 2 ways, 4 shots
            assert len({(c, n) for c, n in zip(own, label, strict=True)}) == 2  # one label a class and sequence
            assert len(set(zip(own, drawing, strict=True))) == 9
        latents = drawn["latents"]
        first = labels[:, 0]
        assert torch.equal(latents["target_1"], first) and torch.equal(latents["target_2"], 1 - first)
        assert torch.equal(latents["target_location"], (labels[:, 8] != first).long())
    # Labels are random: a class has 0 as often as 1. The plateau is a half, but for chance.
    both = torch.cat([seen(made, drawn)[2][:, 8] for drawn in few]).float().mean()
    assert both == pytest.approx(0.5, abs=0.08)
    assert made.prior_accuracy() == pytest.approx(0.5, abs=0.08)
    for name, places in made.regions(made.on_after_batch_transfer(few[0], 0)).items():
        assert places.shape == (250, 17) and (places.sum(1) == 4).all(), name


def test_sequences_without_support_do_not_show_what_they_ask_for() -> None:
    made = data()
    rest = [batch for batch in made.val_dataloader() if "kind" in batch["latents"]]
    assert sum(len(batch["labels"]) for batch in rest) == 300
    for drawn in rest:
        classes, _, labels = seen(made, drawn)
        assert torch.equal(classes, labels) and not (classes[:, :8] == classes[:, 8:]).any()
        rare = drawn["latents"]["kind"] == 0
        assert (classes[rare, 8] < 21).all() and (classes[~rare, 8] >= 21).all() and (classes < 26).all()
        assert abs(int(rare.sum()) - int((~rare).sum())) <= 1
    assert made.accuracies == ("class_1", "class_2", "closed", "in_weights_rare", "in_weights_common")
    assert data(in_weights_size=0).accuracies == ("class_1", "class_2", "closed")


def test_what_is_scored() -> None:
    made = data()
    made.drawings  # noqa: B018  # loaded: model_arguments asks for it before a run, too
    logits = torch.tensor([[0.0, 1, 2], [3, 1, 2]])
    few = {"y": torch.tensor([1, 0]), "latents": {"target_location": torch.tensor([0, 1])}}
    scored = made.scored(logits, few)
    right = {
        name: (answers.argmax(1) == y)[slice(None) if of is None else of].tolist()
        for name, (answers, y, of) in scored.items()
    }
    # Of all labels the first answer is 2, of 0 and 1 alone it is right.
    assert right == {"": [False, True], "class_1": [False], "class_2": [True], "closed": [True, True]}
    rest = {"y": torch.tensor([2, 2]), "latents": {"kind": torch.tensor([0, 1])}}
    right = {
        name: (answers.argmax(1) == y)[of].tolist() for name, (answers, y, of) in made.scored(logits, rest).items()
    }
    assert right == {"in_weights_rare": [True], "in_weights_common": [False]}


def test_batches_are_a_function_of_their_place() -> None:
    one, other, third = data(seed=4), data(seed=4), data(seed=5, class_seed=1)
    assert torch.equal(one.draw_train(2, 7)["images"], other.draw_train(2, 7)["images"])
    assert not torch.equal(one.draw_train(2, 7)["images"], one.draw_train(2, 8)["images"])
    assert not torch.equal(one.draw_train(2, 7)["images"], third.draw_train(2, 7)["images"])
    assert set(one.class_names) == set(third.class_names) and one.class_names != third.class_names
    for mine, your in zip(one.val_dataloader(), data(seed=9).val_dataloader(), strict=True):
        assert torch.equal(mine["images"], your["images"])


def test_symmetries_are_classes_of_their_own_and_held_out_together() -> None:
    plain, turned = data(), data(symmetries=8)
    assert [len(own) for own in (turned.rare, turned.common, turned.holdout)] == [21 * 8, 5 * 8, 4 * 8]
    held = {turned.class_names[index].split(" ")[0] for index in turned.holdout}
    assert held == {plain.class_names[index] for index in plain.holdout}
    image = plain.drawings.pixels[3, 5]
    own = turned.drawings.pixels[24:32, 5]
    assert torch.equal(own[1], image.rot90(1, (0, 1))) and torch.equal(own[4], image.flip(1))
    assert turned.class_names[24:26] == (plain.class_names[3], f"{plain.class_names[3]} 90°")


def test_pictures_for_people_show_a_sequence() -> None:
    made = data(batch_size=3)
    picture = made.composed(made.draw_train(0, 0), normalise=False)["x"]
    assert picture.shape == (3, 3, 12, 12) and 0 <= picture.min() <= picture.max() <= 1
    assert made.composed(made.draw_train(0, 0))["x"][0].shape == (3, 9, 1, 2, 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shots": 5}, r"data.ways=2 classes, shown data.shots=5 times each, take more than data.pairs=8"),
        ({"few_shot_ways": 3}, "data.few_shot_ways=3 must be 2 or more, and divide data.pairs=8"),
        ({"few_shot_ways": 1}, "data.few_shot_ways=1 must be 2 or more"),
        ({"holdout": 1, "few_shot_ways": 2}, "data.holdout=1 characters make 1 classes under data.symmetries=1, fewer"),
        ({"rare": 22}, "data.rare=22, data.common=5 and data.holdout=4 ask for 31 characters, and there are 30"),
        ({"holdout": 24}, "data.common=5 and data.holdout=24 leave too few of the 30 characters to train on"),
        (
            {"counts": [20] * 29 + [8]},
            r"may show 9 drawings of one character, and 1 of 30 characters has fewer \(A/29 has 8\): "
            "add drawings, or take such characters out of the folder, or lower data.pairs to 6$",
        ),
        ({"counts": [20] * 28 + [9, 1]}, r"\(A/29 has 1\): add drawings, or take such characters out of the folder$"),
        ({"counts": [8] * 30}, "30 of 30 .*: add drawings, or lower data.pairs to 6$"),
        (
            {"counts": [1_000_000] * 30, "image_size": 4096, "symmetries": 8},
            "images of 30 characters take .* data.image_size=4096 and data.symmetries=8, .*: lower data.image_size or",
        ),
        ({"symmetries": 3}, "data.symmetries"),
        ({"burstiness": 1.5}, "data.burstiness"),
        ({"rare": 1}, "data.rare"),
    ],
)  # fmt: skip
def test_impossible_settings_are_refused(options: dict, said: str) -> None:
    with pytest.raises((LabError, ValueError), match=said):
        check_arguments(InContextData, {name: value for name, value in options.items() if name != "counts"}, "data")
        data(**options).drawings  # noqa: B018


def test_a_drawing_that_lies_in_two_places_is_one(tmp_path: Path) -> None:
    write_alphabets(tmp_path / "first" / "set", {"Greek": 2, "Korean": 3}, drawings=2)
    with zipfile.ZipFile(tmp_path / "second.zip", "w") as archive:
        for path in sorted((tmp_path / "first" / "set" / "Greek").rglob("*.png")):
            archive.write(path, f"second/{path.relative_to(tmp_path / 'first' / 'set')}")
        other = io.BytesIO()
        Image.new("1", (5, 5)).save(other, "PNG")
        archive.writestr("second/Latin/character01/0001_01.png", other.getvalue())
        archive.writestr("second/Latin/character01/0001_02.JPG", other.getvalue())
        archive.writestr("__MACOSX/second/Latin/character01/._0001_01.png", b"no image")
    for path in sorted((tmp_path / "first" / "set" / "Korean").rglob("*.png")):
        path.rename(path.with_suffix(".PNG"))
    found = Alphabets(str(tmp_path)).load(10)
    assert found.names == ("Greek/01", "Greek/02", "Korean/01", "Korean/02", "Korean/03", "Latin/01")
    assert found.counts.tolist() == [2, 2, 2, 2, 2, 2]
    assert found.pixels.shape == (6, 2, 10, 10) and found.pixels.dtype == torch.uint8
    assert not found.pixels[5].any() and found.pixels[0].any()


def test_what_is_no_drawing_of_a_character_is_passed_over(tmp_path: Path) -> None:
    write_alphabets(tmp_path / "set", {"Greek": 1}, drawings=1)
    for stray in ("preview.png", "Greek/chart.png"):
        (tmp_path / "set" / stray).write_bytes(b"no drawing")
    assert Alphabets(str(tmp_path / "set")).load(10).names == ("Greek/01",)
    assert Alphabets(str(tmp_path / "set" / "Greek")).load(10).names == ("Greek/01",)  # one alphabet


def test_shrinking_is_the_mean_over_the_area(tmp_path: Path) -> None:
    write_alphabets(tmp_path, {"Greek": 1}, drawings=1, size=4)
    (whole,), (half,) = (Alphabets(str(tmp_path)).load(size).pixels[0].float() for size in (4, 2))
    mean = torch.nn.functional.avg_pool2d(whole.unsqueeze(0), 2)[0]
    assert (half - mean).abs().max() <= 0.5


def test_transparent_paper_is_white(tmp_path: Path) -> None:
    folder = tmp_path / "Greek" / "character01"
    folder.mkdir(parents=True)
    drawn = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    drawn.putpixel((1, 2), (0, 0, 0, 255))
    drawn.save(folder / "1.png")
    drawn.quantize(2).save(folder / "2.png")  # transparent by a colour of its palette
    for pixels in Alphabets(str(tmp_path)).load(4).pixels[0]:
        assert pixels[2, 1] == 0 and (pixels == 255).sum() == 15


def test_greys_of_16_bit_are_as_those_of_8(tmp_path: Path) -> None:
    grey = np.linspace(0, 65535, 16).astype(np.uint16).reshape(4, 4)
    for alphabet, drawn in (("A", grey), ("B", (grey >> 8).astype(np.uint8))):
        (tmp_path / alphabet / "character01").mkdir(parents=True)
        Image.fromarray(drawn).save(tmp_path / alphabet / "character01" / "1.png")
    one, other = Alphabets(str(tmp_path)).load(4).pixels
    assert torch.equal(one, other) and len(one.unique()) == 16


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("broken.zip", b"no zip", r"broken.zip cannot be read as a zip file"),
        ("Greek/character01/1.png", b"no image", r"character01/1.png cannot be read as an image: it holds none$"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=said):
        Alphabets(str(tmp_path)).load(10)


def test_numbers_are_checked_before_any_drawing_is_read(tmp_path: Path) -> None:
    write_alphabets(tmp_path, {"Greek": 2}, drawings=3)
    (tmp_path / "Greek" / "character01" / "1.png").write_bytes(b"no image")

    def check(characters: int, most: int) -> None:
        raise MemoryError(characters, most)

    with pytest.raises(MemoryError, match=r"\(2, 4\)"):
        Alphabets(str(tmp_path)).load(10, check)


def test_missing_alphabets_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"data\.alphabets\.root"):
        Alphabets(str(tmp_path / "nothing")).load(10)
    with pytest.raises(FileNotFoundError, match=r"data\.alphabets\.download=true.*data/alphabets=folder"):
        TorchvisionAlphabets(str(tmp_path)).load(10)


def test_omniglot_is_downloaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def served(url: str, root: str, filename: str, md5: str) -> None:
        """What torchvision's download leaves behind, without the network."""
        part = Path(filename).stem
        write_alphabets(Path(root) / part, {part: 2}, drawings=1)
        with zipfile.ZipFile(Path(root) / filename, "w") as archive:
            for path in sorted((Path(root) / part).rglob("*.png")):
                archive.write(path, path.relative_to(root))

    module = torchvision.datasets.omniglot
    monkeypatch.setattr(module, "download_and_extract_archive", served)
    monkeypatch.setattr(module, "check_integrity", lambda path, md5: Path(path).exists())  # these are other files
    with pytest.raises(ValueError, match=r"is not whole: 4 drawings of 4 characters, in place of 20 of each of 1,623"):
        TorchvisionAlphabets(str(tmp_path), download=True).load(10)
    monkeypatch.setattr(alphabets, "_CHARACTERS", 4)
    monkeypatch.setattr(alphabets, "_DRAWINGS", 1)
    found = TorchvisionAlphabets(str(tmp_path), download=True).load(10)
    assert found.names == tuple(f"images_{part}/{n}" for part in ("background", "evaluation") for n in ("01", "02"))
    monkeypatch.setattr(torchvision.datasets.Omniglot, "download", lambda self: pytest.fail("downloads again"))
    monkeypatch.setattr(alphabets, "fetch_files", lambda *_: pytest.fail("makes a lock where one may not write"))
    assert TorchvisionAlphabets(str(tmp_path), download=True).load(10).names == found.names
    monkeypatch.undo()
    for path in (tmp_path / "omniglot-py").glob("*"):
        path.rename(path.with_name(path.stem + "_small1.zip"))
    assert not TorchvisionAlphabets(str(tmp_path))._is_there()
    for part in ("background", "evaluation"):
        (tmp_path / "omniglot-py" / f"images_{part}").mkdir()
    assert not TorchvisionAlphabets(str(tmp_path))._is_there(), "empty folders hold nothing"


@pytest.mark.real_data
def test_the_small_sets_share_two_alphabets(real_data: Path) -> None:
    found = Alphabets(str(real_data / "omniglot")).load(28)
    assert len(found.names) == 242 and found.counts.tolist() == [20] * 242
    assert len({name.split("/")[0] for name in found.names}) == 8
    # White paper, and ink on a tenth of it.
    assert 0.03 < 1 - found.pixels.float().mean() / 255 < 0.15
