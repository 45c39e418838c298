import pickle
from dataclasses import replace

import pytest
import torch

from lab.config.check import check_arguments
from lab.console import LabError
from lab.datasets.scenes import BOTTOM_LEFT, BOTTOM_RIGHT, TOP_LEFT, TOP_RIGHT, LabelledImages
from lab.datasets.sources import Split
from lab.datasets.tasks.main import MainTask
from lab.datasets.tasks.same_color import SameColor
from lab.datasets.tasks.top_if_above import TopIfAbove
from lab.datasets.vision import VisionData
from lab.observation.observe import _batches


def brute_force_label(bank, images) -> int:
    """The main task's rule, in the words of section 4, from the images of one scene."""
    label = bank.labels[images].tolist()
    return label[TOP_RIGHT] if label[TOP_LEFT] == label[BOTTOM_RIGHT] else label[BOTTOM_LEFT]


def test_labels_follow_the_rule(vision_data) -> None:
    bank = vision_data.bank("train")
    for step in range(40):
        draws = vision_data.draw_train(step // 8, step % 8)
        batch = vision_data.composed(draws)
        want = [brute_force_label(bank, row) for row in draws["images"]]
        assert batch["y"].tolist() == want
        first = batch["latents"]["target_location"] == 0
        chosen = torch.where(first, batch["latents"]["target_1"], batch["latents"]["target_2"])
        assert torch.equal(batch["y"], chosen)


def test_pixels_show_the_latents(vision_data) -> None:
    draws = vision_data.draw_train(0, 0)
    bank = vision_data.bank("train")
    x = vision_data.composed(draws, normalise=False)["x"]
    for name, channel in (("red", 0), ("blue", 2)):
        wanted = 0 if name == "red" else 1
        tinted = x[draws["latents"]["color_1"] == wanted][:, :, :28, :28].mean((2, 3))
        assert (tinted.argmax(1) == channel).all()
    garment = bank.pixels[draws["images"][:, TOP_RIGHT], 0].float() / 255
    assert (x[:, :, :28, 28:].mean(1) - garment).abs().mean() < 0.05
    digits = bank.labels[draws["images"][:, [TOP_LEFT, BOTTOM_RIGHT]]]
    assert set(digits.flatten().tolist()) == {1, 2}


def test_images_that_a_task_never_shows_are_not_loaded(drawn_sources) -> None:
    class Missing:
        def load(self, split: Split) -> LabelledImages:
            raise FileNotFoundError(split)

    data = VisionData(SameColor(), {**drawn_sources, "garments": Missing()}, batch_size=4, epoch_size=8)
    whole = VisionData(SameColor(), drawn_sources, batch_size=4, epoch_size=8)
    data.setup()
    one, other = (made.composed(made.draw_train(0, 1)) for made in (data, whole))
    assert torch.equal(one["x"], other["x"])
    data = VisionData(TopIfAbove(), {**drawn_sources, "digits": Missing()}, batch_size=4, epoch_size=8)
    assert torch.equal(data.draw_train(0, 0)["latents"]["target_1"], data.draw_train(0, 0)["latents"]["target_1"])


def test_seeds_share_their_images(drawn_sources) -> None:
    one, two = (VisionData(SameColor(), drawn_sources, batch_size=4, epoch_size=8, seed=seed) for seed in (0, 1))
    alone = VisionData(SameColor(), drawn_sources, batch_size=4, epoch_size=8, seed=1).composed
    before = alone(two.draw_train(0, 0))["x"]
    two.share(one)
    assert torch.equal(two.composed(two.draw_train(0, 0))["x"], before)
    assert two.bank("train") is one.bank("train")


def test_an_epoch_walks_through_every_garment_once(vision_data) -> None:
    bank = vision_data.bank("train")
    seen = torch.cat([vision_data.draw_train(0, step)["images"][:, TOP_RIGHT] for step in range(8)])
    assert seen.unique().numel() == 256
    again = torch.cat([vision_data.draw_train(1, step)["images"][:, TOP_RIGHT] for step in range(8)])
    assert not torch.equal(seen, again)
    assert bank.size("garments") == 300


def test_each_image_of_the_walk_stands_in_scenes_in_a_row(vision_data, drawn_sources) -> None:
    """Repeated augmentation: the same image three times, across the ends of batches, in scenes drawn anew."""
    sizes = {"batch_size": 32, "epoch_size": 256, "validation_size": 100}
    repeated = VisionData(MainTask(), drawn_sources, **sizes, repeats=3)
    draws = [repeated.draw_train(0, step) for step in range(8)]
    once = torch.cat([vision_data.draw_train(0, step)["images"][:, TOP_RIGHT] for step in range(8)])
    assert torch.equal(torch.cat([batch["images"][:, TOP_RIGHT] for batch in draws]), once.repeat_interleave(3)[:256])
    thrice = torch.cat([batch["images"] for batch in draws])[:255].view(85, 3, 4)
    assert (thrice[:, 0, BOTTOM_LEFT] != thrice[:, 1, BOTTOM_LEFT]).float().mean() > 0.9
    locations = torch.cat([batch["latents"]["target_location"] for batch in draws])[:255].view(85, 3)
    assert (locations != locations[:, :1]).any(1).float().mean() > 0.5
    assert torch.equal(repeated.draw_validation(0)["images"], vision_data.draw_validation(0)["images"])


def test_batches_are_a_function_of_their_place(vision_data, drawn_sources) -> None:
    other = VisionData(MainTask(), drawn_sources, batch_size=32, epoch_size=256, validation_size=100)
    late = vision_data.draw_train(3, 5)
    assert torch.equal(late["images"], other.draw_train(3, 5)["images"])
    assert torch.equal(late["colors"], other.draw_train(3, 5)["colors"])
    assert not torch.equal(late["images"], vision_data.draw_train(3, 6)["images"])
    seeded = VisionData(MainTask(), drawn_sources, batch_size=32, epoch_size=256, seed=1)
    assert not torch.equal(late["images"], seeded.draw_train(3, 5)["images"])


def test_validation_is_one_fixed_set_from_the_test_split(vision_data, drawn_sources) -> None:
    loader = vision_data.val_dataloader()
    first, second = list(loader), list(loader)
    assert sum(len(batch["images"]) for batch in first) == 100
    assert all(torch.equal(a["images"], b["images"]) for a, b in zip(first, second, strict=True))
    assert first[0]["split"] == "test"
    seeded = VisionData(MainTask(), drawn_sources, batch_size=32, epoch_size=256, validation_size=100, seed=9)
    assert torch.equal(next(iter(seeded.val_dataloader()))["images"], first[0]["images"])


def test_validation_of_images_sorted_by_class_shows_them_all(drawn_sources) -> None:
    """As those of class folders are."""

    class Sorted:
        def load(self, split):
            images = drawn_sources["garments"].load(split)
            order = images.labels.argsort()
            return replace(images, pixels=images.pixels[order], labels=images.labels[order])

    sources = {**drawn_sources, "garments": Sorted()}
    sizes = {"batch_size": 32, "epoch_size": 256, "validation_size": 40}
    seen = [
        torch.cat([batch["latents"]["target_1"] for batch in VisionData(MainTask(), source, **sizes).val_dataloader()])
        for source in (drawn_sources, sources)
    ]
    classes = [len(one.unique()) for one in seen]
    assert classes[1] >= classes[0] - 2 and classes[1] > 5


def test_processes_share_an_epoch_without_overlap(drawn_sources) -> None:
    class Trainer:
        world_size = 2
        accumulate_grad_batches = 1

        def __init__(self, rank: int) -> None:
            self.global_rank = rank

    seen = []
    for rank in (0, 1):
        data = VisionData(MainTask(), drawn_sources, batch_size=16, epoch_size=256, validation_size=90)
        data.trainer = Trainer(rank)  # type: ignore[assignment]
        assert len(data.train_dataloader()) == 8
        seen.append(torch.cat([data.draw_train(0, step)["images"][:, TOP_RIGHT] for step in range(8)]))
        validation = [batch["images"] for batch in data.val_dataloader()]
        seen.append(torch.cat(validation))
        # Who looks into a model sees the whole set, whatever the number of processes.
        looked = [batch["x"] for batch in _batches(data, torch.device("cpu"))]
        assert len(torch.cat(looked)) == 90 and data.rank == rank
    assert torch.cat([seen[0], seen[2]]).unique().numel() == 256
    assert len(seen[1]) + len(seen[3]) == 90
    few = VisionData(MainTask(), drawn_sources, batch_size=16, epoch_size=256, validation_size=9)
    few.trainer = Trainer(1)  # type: ignore[assignment]
    with pytest.raises(LabError, match="2 processes cannot share a validation set of 1 batch of 32"):
        few.val_dataloader()


def test_other_processes_can_draw_validation_batches(vision_data) -> None:
    dataset = pickle.loads(pickle.dumps(vision_data.val_dataloader().dataset))
    assert torch.equal(dataset[0, 0]["images"], vision_data.draw_validation(0)["images"])


def test_prior_of_the_target_location(drawn_sources) -> None:
    data = VisionData(MainTask(top_right_probability=0.65), drawn_sources, batch_size=20_000, epoch_size=20_000)
    location = data.draw_train(0, 0)["latents"]["target_location"]
    assert abs((location == 0).float().mean().item() - 0.65) < 0.015


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"tile_size": 0}, "tile_size"),
        ({"validation_size": 0}, r"^data\.validation_size=0 is wrong: it must be greater than 0 and at most"),
        (
            {"validation_batch_size": -3},
            r"^data\.validation_batch_size=-3 is wrong: it must be greater than 0 and at most",
        ),
    ],
)
def test_sizes_are_checked(options, message) -> None:
    with pytest.raises(LabError, match=message):
        check_arguments(VisionData, options, "data")


def test_an_epoch_shorter_than_a_batch_is_refused(drawn_sources) -> None:
    with pytest.raises(ValueError, match="smaller than one batch"):
        VisionData(MainTask(), drawn_sources, batch_size=64, epoch_size=32)


@pytest.mark.parametrize("options", [{"digits": (1,)}, {"top_right_probability": 1.5}])
def test_task_options_are_checked(options) -> None:
    with pytest.raises((LabError, ValueError), match=r"data\.task"):
        check_arguments(MainTask, options, "data.task")
        MainTask(**options)


@pytest.mark.real_data
def test_real_images_give_scenes(real_data) -> None:
    from lab.datasets.sources import TorchvisionSource

    sources = {
        name: TorchvisionSource(kind, str(real_data))
        for name, kind in (("digits", "MNIST"), ("garments", "FashionMNIST"))
    }
    data = VisionData(MainTask(), sources, batch_size=512)
    draws = data.draw_train(0, 0)
    batch = data.composed(draws)
    assert batch["x"].shape == (512, 3, 56, 56)
    want = [brute_force_label(data.bank("train"), row) for row in draws["images"]]
    assert batch["y"].tolist() == want
    share = (batch["latents"]["target_location"] == 0).float().mean()
    assert 0.4 < share < 0.6
