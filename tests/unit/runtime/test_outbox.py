from __future__ import annotations

from dataclasses import replace

from atoll.core import messages as msg
from atoll.runtime.outbox import MAX_PER_FRAGMENT, Outbox
from atoll.wire.bulk import Assembly
from atoll.wire.messages import PIECE, BufferValues, Bulk

PIECE_BYTES = 10


def publish(version: int, fragment: int = 0, num_bytes: int = 25) -> msg.Publish:
    return msg.Publish(1, 1, fragment, 1, version, "", version - 1, "", "none", "", 0, num_bytes)


def content(message: Bulk) -> memoryview:
    return memoryview(bytes(index % 256 for index in range(message.num_bytes)))


def outbox_of(*messages: Bulk) -> Outbox:
    outbox = Outbox(PIECE_BYTES)
    for message in messages:
        outbox.put(message, content(message))
    return outbox


def sent(outbox: Outbox) -> list[Bulk]:
    """Take everything and put it together as the other side does."""
    assembly = Assembly(1 << 20, 64, PIECE_BYTES, lambda message: message.num_bytes)
    whole = []
    while (frame := outbox.feed()) is not None:
        assert frame.kind == PIECE
        done = assembly.add(b"".join(bytes(part) for part in frame.parts))
        if done is not None:
            assert done[1] == content(done[0])
            whole.append(done[0])
    return whole


def test_messages_leave_in_the_order_in_which_they_came_and_arrive_whole():
    messages = [publish(1), publish(2, fragment=1, num_bytes=0), publish(3, fragment=2, num_bytes=10)]
    assert sent(outbox_of(*messages)) == messages


def test_an_empty_outbox_has_nothing_to_feed():
    outbox = Outbox(PIECE_BYTES)
    assert outbox.is_empty
    assert outbox.feed() is None


def test_it_is_empty_only_when_the_last_piece_was_taken():
    outbox = outbox_of(publish(1))
    while outbox.feed() is not None:
        pass
    assert outbox.is_empty
    outbox.put(publish(2), content(publish(2)))
    assert not outbox.is_empty


def test_it_knows_what_it_holds_until_that_is_sent():
    outbox = outbox_of(publish(1), publish(2))
    outbox.feed()
    assert outbox.holds(publish(1))
    assert outbox.holds(publish(2))
    assert not outbox.holds(publish(3))
    sent(outbox)
    assert not outbox.holds(publish(2))


def test_of_many_versions_of_a_fragment_only_the_newest_wait():
    newest = [publish(version) for version in range(100 - MAX_PER_FRAGMENT, 100)]
    outbox = outbox_of(publish(7, fragment=1), *(publish(version) for version in range(100)))
    assert sent(outbox) == [publish(7, fragment=1), *newest]


def test_the_message_on_its_way_is_not_dropped_for_newer_ones():
    outbox = outbox_of(publish(0))
    first = outbox.feed()
    assert first is not None
    for version in range(1, 50):
        outbox.put(publish(version), content(publish(version)))
    assembly = Assembly(1 << 20, 64, PIECE_BYTES, lambda message: message.num_bytes)
    assembly.add(b"".join(bytes(part) for part in first.parts))
    for _ in range(2):
        frame = outbox.feed()
        assert frame is not None
        whole = assembly.add(b"".join(bytes(part) for part in frame.parts))
    assert whole is not None
    assert whole[0] == publish(0)


def test_groups_of_buffers_do_not_push_each_other_out_and_older_reports_do_not_pile_up():
    def report(tokens: int, group: int) -> BufferValues:
        return BufferValues("ada", 1, tokens, (f"buffer-{group}",), ((2,),), 8, "")

    outbox = outbox_of(*(report(tokens, group) for tokens in range(20) for group in range(5)))
    waiting = sent(outbox)
    assert len(waiting) == 5 * MAX_PER_FRAGMENT
    assert {report(19, group) for group in range(5)} <= set(waiting)


def test_an_offer_and_a_seed_of_one_fragment_are_different_things():
    body = msg.Body("ada", 1, 1, 1, 0, "", 5)
    seed = msg.SeedBody("ada", 1, 1, 0, "", 5)
    bodies = [replace(body, round=number) for number in range(MAX_PER_FRAGMENT)]
    seeds = [replace(seed, epoch=number) for number in range(MAX_PER_FRAGMENT)]
    assert sent(outbox_of(*bodies, *seeds)) == [*bodies, *seeds]


def test_nothing_is_left_when_the_other_side_is_gone():
    outbox = outbox_of(publish(1), publish(2))
    outbox.feed()
    outbox.clear()
    assert outbox.is_empty
    assert outbox.feed() is None
