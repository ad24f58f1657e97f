"""Data beyond what a plain recipe reads: parts of the library by topic, and many variants of the digits."""

import hashlib

import pytest
import torch

from atoll.errors import RecipeError
from atoll.recipes import examples, text


def test_parts_cover_the_training_text_in_the_order_of_names():
    texts = text.read(None, 300_000, 20_000)
    cut, heldout = examples.parts(4, 64, 300_000, 20_000)
    whole = b"\0".join(texts.train_by_name())
    assert bytes(torch.cat(cut).tolist()) == whole
    assert bytes(heldout.tolist()) == b"\0".join(texts.heldout)


def test_parts_are_of_equal_size_whatever_their_number():
    for count in (1, 3, 8):
        sizes = [len(part) for part in examples.parts(count, 64, 100_000, 10_000)[0]]
        assert len(sizes) == count
        assert max(sizes) - min(sizes) <= 1


def test_names_stand_beside_the_documents_and_sort_them():
    texts = text.split(
        [text.Document(f"pack{n % 3}/{n}", f"{n % 3}:{n:03d}".encode) for n in range(60)], 10**6, 10**6
    )
    assert len(texts.names) == len(texts.train)
    topics = [content[:1] for content in texts.train_by_name()]
    assert topics == sorted(topics)
    assert sorted(texts.train_by_name()) == sorted(texts.train)


def test_more_parts_than_the_text_has_examples_are_refused():
    with pytest.raises(RecipeError, match=r"1000 bytes in 20 parts leave 50 bytes[\s\S]*takes 65 bytes"):
        examples.parts(20, 64, 1_000, 1_000)


def images(side: examples.Examples) -> examples.Images:
    assert isinstance(side, examples.Images)
    return side


def test_augmented_digits_are_many_always_the_same_and_show_what_they_say():
    split = examples.augmented_digits()
    train, heldout = images(split.train), images(split.heldout)
    assert (len(train), len(heldout)) == (32 * 1440, 8 * 357)
    again = images(examples.augmented_digits.__wrapped__().train)
    assert torch.equal(train.pixels, again.pixels)
    plain = images(examples.load(vit()).train)
    assert torch.equal(train.labels, plain.labels.repeat(32))
    near = (train.pixels[: len(plain)] - plain.pixels).square().mean()
    far = (train.pixels[: len(plain)] - plain.pixels.roll(1, 0)).square().mean()
    assert near < 0.7 * far


def test_heldout_variants_are_of_heldout_digits_in_a_mixed_order():
    heldout, plain = images(examples.augmented_digits().heldout), images(examples.load(vit()).heldout)
    assert torch.equal(heldout.labels.bincount(), 8 * plain.labels.bincount())
    assert not torch.equal(heldout.labels, plain.labels.repeat(8))
    assert digest(plain.pixels) != digest(heldout.pixels[: len(plain)])


def digest(pixels: torch.Tensor) -> str:
    return hashlib.blake2b(pixels.numpy().tobytes()).hexdigest()


def vit():
    from atoll.recipes import load_recipe

    return load_recipe("vit-digits")
