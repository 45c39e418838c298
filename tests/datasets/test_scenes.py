import pytest
import torch

from lab.datasets.scenes import IMAGENET_MEAN, IMAGENET_STD, ImageBank, compose, tint, unnormalised
from lab.datasets.seeding import derived_seed, generator_of
from lab.datasets.sources import Images


def images(count: int, channels: int = 1, side: int = 28, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, channels, side, side), dtype=torch.uint8, generator=generator)
    return Images(pixels, torch.arange(count) % 10, tuple(map(str, range(10))))


def test_compose_equals_a_picture_painted_tile_by_tile() -> None:
    bank = ImageBank({"digits": images(20), "birds": images(10, channels=3, seed=1)}, 28)
    index = torch.randint(30, (5, 4))
    colors = torch.rand(5, 4, 3)
    got = compose(bank.pixels, index, colors)
    for scene in range(5):
        for tile in range(4):
            row, column = divmod(tile, 2)
            for channel in range(3):
                grey = bank.pixels[index[scene, tile], channel].float() / 255
                want = (grey * colors[scene, tile, channel] - IMAGENET_MEAN[channel]) / IMAGENET_STD[channel]
                place = got[scene, channel, row * 28 : (row + 1) * 28, column * 28 : (column + 1) * 28]
                torch.testing.assert_close(place, want, atol=1e-5, rtol=1e-5)


def test_a_tile_without_colour_is_black() -> None:
    bank = ImageBank({"digits": images(4)}, 28)
    colors = torch.ones(1, 4, 3)
    colors[0, 2] = 0
    picture = compose(bank.pixels, torch.zeros(1, 4, dtype=torch.int64), colors, normalise=False)
    assert picture[0, :, 28:, :28].abs().max() == 0
    assert picture[0, :, :28, :28].max() > 0.9


def test_normalisation_can_be_undone() -> None:
    bank = ImageBank({"digits": images(4)}, 28)
    scene = bank.pixels, torch.tensor([[0, 1, 2, 3]]), torch.rand(1, 4, 3)
    torch.testing.assert_close(unnormalised(compose(*scene)), compose(*scene, normalise=False))


def test_bank_draws_only_the_classes_asked_for() -> None:
    bank = ImageBank({"digits": images(50), "garments": images(30)}, 28)
    drawn = bank.draw("garments", [500], torch.Generator().manual_seed(0), classes=(3, 7))
    assert set(bank.labels[drawn].tolist()) == {3, 7}
    assert drawn.min() >= 50


def test_bank_resizes_to_the_tile() -> None:
    bank = ImageBank({"digits": images(3, side=28), "cifar": images(3, channels=3, side=32)}, 14)
    assert bank.pixels.shape == (6, 3, 14, 14)
    want = images(3).pixels.float().view(3, 1, 14, 2, 14, 2).mean((3, 5)).round()
    assert (bank.pixels[:3, :1].float() - want).abs().max() <= 1


def test_bank_names_what_it_has() -> None:
    bank = ImageBank({"digits": images(3)}, 28)
    with pytest.raises(ValueError, match=r"'garments', but the data holds \['digits'\]"):
        bank.size("garments")
    with pytest.raises(ValueError, match="source 'digits' has no image of class -1, 9; its classes are 0 to "):
        bank.draw("digits", [1], torch.Generator(), classes=(1, 9, -1))


def test_colour_noise_is_one_value_a_tile_and_channel() -> None:
    palette = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    choice = torch.randint(2, (20_000, 4))
    noise = tint(palette, choice, torch.Generator().manual_seed(0)) - palette[choice]
    assert noise.mean().abs() < 1e-3
    assert abs(noise.std().item() - 0.05) < 1e-3
    assert noise.unique().numel() > 100_000


def test_seeds_depend_on_every_part() -> None:
    seeds = {derived_seed(*parts) for parts in [(0, 1), (1, 0), (0, 1, 0), ("a", 1), (0, 11), (1, 1)]}
    assert len(seeds) == 6
    a, b = generator_of("x", 1), generator_of("x", 1)
    assert torch.equal(torch.rand(5, generator=a), torch.rand(5, generator=b))
