import pytest
import torch

from datasets.drawn import DrawnDigits, DrawnGarments

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


def test_no_linear_classifier_solves_them_but_a_neighbour_does(drawn) -> None:
    train, test = drawn
    x, x_test = (torch.cat([s.pixels.flatten(1) / 255.0, torch.ones(len(s.labels), 1)], 1) for s in (train, test))
    y = torch.nn.functional.one_hot(train.labels, 10) * 2.0 - 1
    weights = torch.linalg.solve(x.T @ x + 30 * torch.eye(x.shape[1]), x.T @ y)
    linear = ((x_test @ weights).argmax(1) == test.labels).float().mean()
    neighbour = (train.labels[torch.cdist(x_test, x).argmin(1)] == test.labels).float().mean()
    assert 0.3 < linear < 0.85
    assert neighbour > 0.88


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_are_checked(kind) -> None:
    with pytest.raises(ValueError, match="test_size must be at least 10"):
        kind(test_size=3)
