"""Messages take the time that their links say, and meet the troubles that lie over them."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest

from atoll.core.params import MS, SECOND
from atoll.sim.engine import Engine
from atoll.sim.network import DOWN, UP, Direction, Link, Network, Trouble


class Small(NamedTuple):
    """A control message."""

    text: str


class Bulk(NamedTuple):
    """A message about a fragment, with content."""

    fragment: int
    text: str = ""


class Halfway(random.Random):
    """Every draw is a half: jitter adds nothing, and arithmetic is exact."""

    def random(self) -> float:
        return 0.5


class Wire:
    """One link of 1000 bytes a second and 100 ms, and what came out of it."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self.engine = Engine()
        self.struck: list[Trouble] = []
        self.arrived: list[tuple[int, Any, bool]] = []
        self.network = Network(self.engine, rng or Halfway(), self.struck.append)
        self.link = Link(Direction(100 * MS, 1000.0), Direction(100 * MS, 1000.0))
        self.network.links["a"] = self.link

    def send(self, message: Any, num_bytes: int = 0, way: str = UP, *, heard: bool = True) -> None:
        self.network.send("a", way, message, num_bytes, self._deliver, lambda: heard)

    def _deliver(self, message: Any, intact: bool) -> None:
        self.arrived.append((self.engine.now_ns // MS, message, intact))

    def run(self, seconds: float = 100) -> list[tuple[int, Any]]:
        """Go on to a time; returns (milliseconds, message) of everything that arrived."""
        self.engine.run(int(seconds * SECOND))
        return [(at, message) for at, message, _ in self.arrived]

    def trouble(self, kind: str, strength: float = 1.0, way: str = UP) -> Trouble:
        trouble = Trouble(kind, strength)
        self.network.trouble(self.link.direction(way), trouble, begins=True)
        return trouble


def test_a_small_message_takes_the_latency():
    wire = Wire()
    wire.send(Small("hello"))
    assert wire.run() == [(100, Small("hello"))]


def test_the_jitter_of_the_latency_is_a_quarter_at_most():
    wire = Wire(random.Random(3))
    for number in range(200):
        wire.send(Small(str(number)))
    times = [at for at, _ in wire.run()]
    assert 75 <= min(times) < 80
    assert 120 < max(times) <= 125


def test_a_bulk_message_takes_its_bytes_at_the_bandwidth_and_then_the_latency():
    wire = Wire()
    wire.send(Bulk(0), 500)
    assert wire.run() == [(600, Bulk(0))]


def test_bulk_messages_of_one_direction_wait_for_each_other_and_control_does_not():
    wire = Wire()
    wire.send(Bulk(0), 500)
    wire.send(Bulk(1), 300)
    wire.send(Small("report"))
    wire.send(Bulk(2), 200, DOWN)
    assert wire.run() == [(100, Small("report")), (300, Bulk(2)), (600, Bulk(0)), (900, Bulk(1))]


def test_a_newer_message_on_a_fragment_takes_the_place_of_an_older_one_that_waits():
    wire = Wire()
    wire.send(Bulk(0), 500)
    wire.send(Bulk(1, "old"), 400)
    wire.send(Bulk(2), 100)
    wire.send(Bulk(1, "new"), 300)
    assert wire.run() == [(600, Bulk(0)), (700, Bulk(2)), (1000, Bulk(1, "new"))]


def test_what_is_being_sent_is_not_replaced():
    wire = Wire()
    wire.send(Bulk(0, "old"), 500)
    wire.send(Bulk(0, "new"), 500)
    assert wire.run() == [(600, Bulk(0, "old")), (1100, Bulk(0, "new"))]


def test_a_direction_knows_what_it_still_holds():
    wire = Wire()
    first, second = Bulk(0), Bulk(1)
    wire.send(first, 500)
    wire.send(second, 500)
    wire.run(0.6)
    assert not wire.link.up.holds(first)
    assert wire.link.up.holds(second)


def test_a_thin_link_divides_the_bandwidth_from_the_moment_it_begins_to_the_moment_it_ends():
    wire = Wire()
    wire.send(Bulk(0), 1000)
    wire.run(0.25)  # 250 bytes are gone
    trouble = wire.trouble("thin-link", 5.0)
    wire.run(1.25)  # another 200 in a second at a fifth
    wire.network.trouble(wire.link.up, trouble, begins=False)
    assert wire.run() == [(1900, Bulk(0))]  # 550 left at 1.25 s, and the latency


def test_of_two_thin_links_the_thinner_one_counts():
    wire = Wire()
    wire.trouble("thin-link", 2.0)
    wire.trouble("thin-link", 4.0)
    assert wire.link.up.rate() == 250.0


def test_a_thin_link_does_not_delay_control():
    wire = Wire()
    thin = wire.trouble("thin-link", 50.0)
    wire.send(Small("report"))
    assert wire.run() == [(100, Small("report"))]
    assert not thin.has_struck


def test_a_one_way_cut_leaves_the_other_way_open():
    wire = Wire()
    cut = wire.trouble("one-way", way=UP)
    wire.send(Small("report"), way=UP)
    wire.send(Bulk(0), 100, way=UP)
    wire.send(Small("beat"), way=DOWN)
    assert wire.run() == [(100, Small("beat"))]
    assert wire.struck == [cut]


def test_a_cut_that_has_ended_cuts_no_more_and_what_it_took_stays_lost():
    wire = Wire()
    cut = wire.trouble("partition")
    wire.send(Small("lost"))
    wire.network.trouble(wire.link.up, cut, begins=False)
    wire.send(Small("heard"))
    assert wire.run() == [(100, Small("heard"))]


def test_a_fault_strikes_once_and_only_if_somebody_would_have_read_the_message():
    wire = Wire()
    cut = wire.trouble("partition")
    wire.send(Small("to nobody"), heard=False)
    assert wire.struck == []
    wire.send(Small("to somebody"))
    wire.send(Small("to somebody"))
    assert wire.struck == [cut]


def test_loss_takes_its_share():
    wire = Wire(random.Random(5))
    wire.trouble("loss", 0.3)
    for number in range(1000):
        wire.send(Small(str(number)))
    assert 650 < len(wire.run()) < 750


def test_duplication_delivers_the_same_message_twice():
    wire = Wire()
    wire.trouble("duplication")
    wire.send(Small("twice"))
    assert wire.run() == [(100, Small("twice")), (250, Small("twice"))]


def test_reordering_lets_a_later_message_overtake():
    wire = Wire()
    late = wire.trouble("reordering")
    wire.send(Small("first"))
    wire.network.trouble(wire.link.up, late, begins=False)
    wire.send(Small("second"))
    assert [message.text for _, message in wire.run()] == ["second", "first"]


def test_corruption_spoils_content_and_spares_control():
    wire = Wire()
    wire.trouble("corruption")
    wire.send(Bulk(0), 100)
    wire.send(Small("report"))
    wire.run()
    assert {type(message): intact for _, message, intact in wire.arrived} == {Bulk: False, Small: True}


@pytest.mark.parametrize("kind", ["loss", "duplication", "reordering", "corruption"])
def test_a_trouble_of_no_strength_does_nothing(kind):
    wire = Wire()
    wire.trouble(kind, 0.0)
    wire.send(Bulk(0), 500)
    assert wire.run() == [(600, Bulk(0))]
    assert wire.struck == []
