import pytest
import torch

from atoll.recipes import variants
from atoll.recipes.variants import BACKGROUND, MOST_NOISE, vary

DOT = torch.full((1, 1, 8, 8), BACKGROUND)
DOT[0, 0, 3:5, 3:5] = 1.0


def test_the_same_seed_gives_the_same_bits_and_another_seed_others():
    state = torch.get_rng_state()
    assert torch.equal(vary(DOT, 5, seed=1), vary(DOT, 5, seed=1))
    assert not torch.equal(vary(DOT, 5, seed=1), vary(DOT, 5, seed=2))
    assert torch.equal(torch.get_rng_state(), state)


def test_every_variant_is_another_picture_of_the_same_thing(monkeypatch):
    monkeypatch.setattr(variants, "MOST_NOISE", 0.1)
    seen = vary(DOT, 50, seed=1)
    assert seen.shape == (50, 1, 8, 8)
    assert len({tuple(one.flatten().tolist()) for one in seen}) == 50
    assert (seen.min().item(), seen.max().item()) == (-1, 1)
    ink = (seen + 1).sum(dim=(1, 2, 3))
    assert ink.min() > 4  # the dot has 8, its zoomed variants between 6 and 10, and noise adds some
    assert ink.max() < 14


def test_a_dot_in_the_middle_moves_by_a_point_at_most(monkeypatch):
    monkeypatch.setattr(variants, "MOST_NOISE", 0.1)
    seen = vary(DOT, 200, seed=3)[:, 0] > 0
    reached = seen.any(dim=0).nonzero()
    assert reached.min() >= 2
    assert reached.max() <= 5


def test_outside_the_image_there_is_background():
    blank = vary(torch.full((1, 1, 8, 8), BACKGROUND), 20, seed=1)
    assert blank.max() <= BACKGROUND + MOST_NOISE


def test_variants_come_in_turns_so_that_labels_repeat():
    two = torch.cat([DOT, torch.full((1, 1, 8, 8), BACKGROUND)])
    sums = (vary(two, 3, seed=1) > 0).any(dim=-1).any(dim=-1).flatten()
    assert sums.tolist() == [True, False] * 3


@pytest.mark.parametrize("count", [1, 4])
def test_shapes_with_channels_are_kept(count):
    assert vary(torch.zeros(2, 3, 8, 8), count, seed=0).shape == (2 * count, 3, 8, 8)
