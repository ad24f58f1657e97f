"""The demo as a text that is read as a diff. Regenerate on purpose: python -m tests.golden.stories"""

from __future__ import annotations

from pathlib import Path

from atoll.sim.demo import run
from atoll.sim.story import narrate

DEMO = Path(__file__).with_name("demo.txt")


def demo_story() -> str:
    """Every sentence of the demo, with its time and mood, and the digest of its tape."""
    result = run(7)
    lines = [f"{line.at_ns / 1e9:8.3f} {line.mood:5} {line.text}" for line in narrate(result.world.tape)]
    return "\n".join([*lines, f"digest {result.facts['digest']}", ""])


if __name__ == "__main__":
    DEMO.write_text(demo_story())
    print(f"wrote {DEMO.name}")
