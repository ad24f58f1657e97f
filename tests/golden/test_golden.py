"""What the protocol does on a bad day, sentence by sentence: a change shows as a diff."""

from __future__ import annotations

from tests.golden.stories import DEMO, demo_story


def test_the_demo_is_the_story_on_record():
    assert demo_story() == DEMO.read_text(), "meant? python -m tests.golden.stories, and read the diff"
