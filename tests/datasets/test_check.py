"""What a task of one's own gets wrong is told in one sentence, before training."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lab.datasets.scenes import Scenes
from lab.datasets.tasks.check import check_task
from lab.datasets.tasks.main import MainTask
from lab.datasets.tasks.task import Task, choose
from lab.datasets.vision import VisionData


class Whole(MainTask):
    """The main task, of which each case below spoils something."""


def but(**latents) -> type[Whole]:
    """With other latents: made by a function of the scenes, or left out (None)."""

    class Own(Whole):
        def sample(self, bank, walk, generator) -> Scenes:
            scenes = super().sample(bank, walk, generator)
            for name, make in latents.items():
                if make is None:
                    del scenes.latents[name]
                else:
                    scenes.latents[name] = make(scenes)
            return scenes

    return Own


def drawing(change) -> type[Whole]:
    """With scenes changed by a function of (scenes, generator)."""

    class Own(Whole):
        def sample(self, bank, walk, generator):
            return change(super().sample(bank, walk, generator), generator)

    return Own


def labelled(rule) -> type[Whole]:
    """With another rule, a function of the latents."""

    class Own(Whole):
        def label(self, latents):
            return rule(latents)

    return Own


def having(**attributes) -> type[Task]:
    """With other attributes of the class."""
    return type("Own", (Whole,), attributes)


def without(*names: str) -> type[Task]:
    """A task that is not derived from a ready one, and lacks these."""
    own = {"label_source": "garments", "sample": MainTask.sample, "label": MainTask.label}
    return type("Own", (Task,), {name: value for name, value in own.items() if name not in names})


def exchanged(one: str, other: str) -> type[Whole]:
    """With two latents in each other's place."""

    def change(scenes, _):
        latents = scenes.latents
        return replace(scenes, latents={**latents, one: latents[other], other: latents[one]})

    return drawing(change)


def walking(change) -> type[Task]:
    """With another walk, a function of the one that is given."""
    return having(sample=lambda self, bank, walk, dice: MainTask.sample(self, bank, change(walk), dice))


def in_place(latents):
    latents["target_1"] += 1
    return latents["target_1"] * 0


ADRIFT = {f"{part}_tile": None for part in ("indicator_1", "indicator_2", "target_1", "target_2")}

DEFINITIONS = {
    "no label_source": (without("label_source"), "Own lacks label_source.* one of digits, garments"),
    "no sample": (without("sample"), "Own lacks the method sample, which draws its scenes"),
    "no label": (without("label"), "Own lacks the method label, which labels"),
    "a method": (having(label_source=lambda self: "garments"), "Own.label_source .* is a method without @property"),
    "a number": (having(label_source=3), "Own.label_source has to be the name of images.* and is 3"),
    "other images": (
        having(label_source="shoes"),
        "Own.label_source='shoes' is none of the data's images: digits, gar",
    ),
    "sources without label_source": (
        having(sources=("digits",)),
        r"Own.sources has to name label_source, 'garments', too, and is \('digits',\)",
    ),
    "a source": (having(sources="garments"), r"Own.sources has to hold names .*\(\"garments\",\).* and is 'garments'"),
    "another source": (having(sources=("garments", "shoes")), "Own.sources has to hold .* out of digits, garments"),
    "one location": (having(locations=("top",)), "Own.locations has to name two places or more"),
    "a word": (having(locations="top_right"), "Own.locations has to name two places or more.* and is 'top_right'"),
    "two of one name": (having(locations=("top", "top")), "Own.locations has to name two places"),
    "names": (having(label_names=("a", "b")), r"Own.label_names has to be a .*: def label_names\(self, class_names\)"),
    "names of nothing": (having(label_names=lambda self: ("a", "b")), "Own.label_names has to be a method"),
    "no task": (torch.nn.Identity, "data.task has to be a lab.datasets.tasks.task.Task, which Identity is not"),
}

SCENES = {
    "a source left out": (having(sources=("garments",)), "for images 'digits', .* attribute sources has to name there"),
    "no target_location": (but(target_location=None), "Own.sample gives no latent target_location: metrics and"),
    "no target": (but(target_2=None), "gives no latent target_2"),
    "no indicator": (but(indicator_1=None, indicator_2=None), "gives no latent indicator_1"),
    "three locations": (having(locations=("a", "b", "c")), "gives no latent target_3"),
    "no tiles": (but(**ADRIFT), "no latent indicator_1_tile, indicator_2_tile, .*attention_mass.* placeless"),
    "one tile": (but(target_1_tile=None), "no latent target_1_tile, the tile"),
    "tile 4": (but(target_1_tile=lambda s: s.latents["target_1_tile"] + 3), "target_1_tile has to lie in 0 ... 3"),
    "location 2": (
        but(target_location=lambda s: 2 * s.latents["target_location"]),
        "target_location has to lie in 0 ... 1",
    ),
    "a negative place": (
        but(target_location=lambda s: s.latents["target_location"] - 1),
        "target_location has to lie in 0 ... 1",
    ),
    "a Boolean": (but(target_location=lambda s: s.latents["target_location"] == 1), "target_location .* is torch.bool"),
    "a number": (but(color_1=lambda s: 1), "latent color_1 has to be a tensor, and is int"),
    "a column": (
        but(color_1=lambda s: s.latents["color_1"][:, None]),
        r"color_1 .* of shape \[256\] for 256 .*\[256, 1\]",
    ),
    "a class below 0": (
        but(color_1=lambda s: s.latents["color_1"] - 1),
        "color_1 has to be a class from 0 on, and is -1",
    ),
    "no scenes": (drawing(lambda s, _: s.images), "has to return lab.datasets.scenes.Scenes, and returns Tensor"),
    "a list": (drawing(lambda s, _: replace(s, latents=[])), "latents have to be a dict by name, and are list"),
    "three tiles": (drawing(lambda s, _: replace(s, images=s.images[:, :3])), r"images has to be .* \[256, 4\]"),
    "no colours": (drawing(lambda s, _: replace(s, colors=s.colors[..., 0])), r"colors has to be .* \[256, 4, 3\]"),
    "float64": (drawing(lambda s, _: replace(s, colors=s.colors.double())), "colors has to be torch.float32 .*float64"),
    "no number": (drawing(lambda s, _: replace(s, colors=s.colors * torch.nan)), "colors have to be finite"),
    "far colours": (drawing(lambda s, _: replace(s, colors=s.colors / 0)), "colors have to be finite"),
    "far images": (drawing(lambda s, _: replace(s, images=s.images + 9999)), "images has to lie in 0 ... "),
    "own dice": (
        drawing(lambda s, _: replace(s, colors=torch.rand(len(s), 4, 3))),
        "other scenes from a generator of the",
    ),
    "one seed": (
        having(sample=lambda self, bank, walk, _: MainTask.sample(self, bank, walk, torch.Generator().manual_seed(0))),
        "draws the same scenes whatever the seed",
    ),
    "unknown latent": (
        labelled(lambda z: z["digit"]),
        "Own.label reads the latent digit, which sample does not give; it ",
    ),
    "no label": (labelled(lambda z: None), "the label has to be a tensor, and is NoneType"),
    "a float": (labelled(lambda z: z["target_1"].float()), "the label has to be torch.int64"),
    "label 10": (labelled(lambda z: z["target_1"] + 10), "the label has to lie in 0 ... 9 .*label_names"),
    "of the batch": (labelled(lambda z: z["target_1"].cummax(0).values), "another label among other scenes"),
    "in place": (labelled(in_place), "Own.label changes the latents that it is given"),
    "other way round": (
        labelled(lambda z: choose(z["target_2"], z["target_1"], z["target_location"])),
        "where target_location says top_right, target_1 has to decide the label, but target_1=. comes with the labels",
    ),
}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_what_can_be_told_without_images_is_told_first(name: str, drawn_sources: dict) -> None:
    make, words = DEFINITIONS[name]
    with pytest.raises(ValueError, match=words) as told:
        VisionData(make(), drawn_sources)
    assert "\n" not in str(told.value)
    with pytest.raises(ValueError, match=words):
        check_task(make(), drawn_sources)


@pytest.mark.parametrize("name", SCENES)
def test_what_scenes_show_is_told_before_training(name: str, drawn_sources: dict) -> None:
    make, words = SCENES[name]
    with pytest.raises(ValueError, match=words) as told:
        VisionData(make(), drawn_sources, batch_size=4).setup()
    assert "\n" not in str(told.value)
    with pytest.raises(ValueError, match=words):
        check_task(make(), drawn_sources, scenes=256)


# Mistakes that are looked for in many scenes alone.
MANY = {
    "no walk": (walking(torch.zeros_like), "Own.sample shows the same images whatever its walk: show bank.walk"),
    "exchanged tiles": (
        exchanged("target_1_tile", "target_2_tile"),
        "target_1 follows from the class of the image on target_2_tile, not of the one on target_1_tile",
    ),
    "exchanged targets": (
        exchanged("target_1", "target_2"),
        "target_1 follows from the class of the image on target_2_tile, not of the one on target_1_tile",
    ),
    "tiles the other way round": (
        drawing(lambda s, _: replace(s, images=s.images.flip(1))),
        "indicator_1 follows from the class of the image on indicator_2_tile, not",
    ),
    "images of other scenes": (
        drawing(lambda s, _: replace(s, images=s.images.flip(0))),
        "target_1 follows from the class of the image that walk names, not",
    ),
}


@pytest.mark.parametrize("name", MANY)
def test_what_many_scenes_show_is_told_in_the_test_of_a_task_alone(name: str, drawn_sources: dict) -> None:
    make, words = MANY[name]
    with pytest.raises(ValueError, match=words) as told:
        check_task(make(), drawn_sources, scenes=1000)
    assert "\n" not in str(told.value)
    VisionData(make(), drawn_sources, batch_size=4).setup()


def test_a_location_never_chosen_is_told_but_a_rare_one_is_not(drawn_sources: dict) -> None:
    class Never(but(target_location=lambda s: 0 * s.latents["target_location"])):  # type: ignore[misc]
        def label(self, latents):
            return latents["target_1"]

    third = but(target_3=lambda s: s.latents["target_2"], target_3_tile=lambda s: s.latents["target_2_tile"])
    third.locations = ("a", "b", "c")
    for task, location in ((Never, "bottom_left"), (third, "c")):
        with pytest.raises(ValueError, match=f"target_location never says {location} in 1000 scenes"):
            check_task(task(), drawn_sources, scenes=1000)
    check_task(MainTask(top_right_probability=0.99), drawn_sources, scenes=1000)
    # A task may be trained with a prior of 1, to compare with.
    VisionData(MainTask(top_right_probability=1), drawn_sources, batch_size=4).setup()


def test_latents_that_no_class_decides_are_left_alone(drawn_sources: dict) -> None:
    def noisy(scenes, _):
        images = scenes.images.clone()
        # One time in six, as the noise of colours is random.
        images[:, 1] = torch.where(scenes.colors[:, 1, 0] < 0.95, images[:, 2], images[:, 1])
        return replace(scenes, images=images)

    check_task(but(target_2=lambda s: (s.latents["target_2"] + s.latents["indicator_1"]) % 10)(), drawn_sources)
    check_task(drawing(noisy)(), drawn_sources)


def test_a_property_and_parts_without_a_place_will_do(drawn_sources: dict) -> None:
    class Own(but(**ADRIFT)):  # type: ignore[misc]
        placeless = ("indicator_1", "indicator_2", "target_1", "target_2")

        @property
        def label_source(self) -> str:
            return "garments"

    check_task(Own(), drawn_sources, scenes=500)


def test_an_error_in_ones_own_rule_stays_what_it_is(drawn_sources: dict) -> None:
    with pytest.raises(KeyError, match="target_1"):
        check_task(labelled(lambda latents: {}["target_1"])(), drawn_sources, scenes=4)


def test_looking_draws_nothing_of_training(drawn_sources: dict) -> None:
    looked, not_looked = (VisionData(MainTask(), drawn_sources, batch_size=8) for _ in range(2))
    torch.manual_seed(1)
    before = torch.get_rng_state()
    looked.setup()
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(looked.draw_train(0, 0)["images"], not_looked.draw_train(0, 0)["images"])
