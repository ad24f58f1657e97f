"""What a ledger makes of the lines that it reads."""

from __future__ import annotations

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.records import Contributor, MemberRecord, RoundRecord
from atoll.sim.scale.ledger import Ledger, Life
from atoll.tape.entries import Stored

S = 1_000_000_000
ACTOR = "a#1"


def ledger() -> Ledger:
    made = Ledger()
    made.begin_life(ACTOR, "a", S)
    return made


def step(at_s: int, *, took_s: int = 1, held_ns: int = 0) -> ev.Stepped:
    return ev.Stepped(at_s * S, 100, took_s * S, held_ns)


def merge(version: int, base: int, *names: str) -> Stored:
    parts = tuple(Contributor(name, 1, 0, 100, 1, base, 100.0) for name in names)
    return Stored(RoundRecord(1, version, 0, version, "d", "e", 5, parts), True)


def test_a_step_is_kept_unless_its_life_ended_before_offering_it():
    assert Life("a", S, tokens=300, offered=200).kept == 300
    assert Life("a", S, tokens=300, offered=200, has_ended=True).kept == 200
    assert Life("a", S, tokens=300, has_ended=True).kept == 0


def test_the_end_of_the_last_header_is_what_was_offered():
    book = ledger()
    book.add(S, ACTOR, step(1))
    book.add(S, ACTOR, do.Tell(msg.Header("a", 1, 1, 1, 0, 0, "d", 0, 100, 1, (0,))))
    book.add(2 * S, ACTOR, step(2))
    book.end_life(ACTOR)
    assert (book.lives[ACTOR].tokens, book.lives[ACTOR].kept) == (200, 100)


def test_a_step_with_a_pause_in_it_counts_for_its_usual_time():
    book = ledger()
    book.add(S, ACTOR, step(1))
    book.add(31 * S, ACTOR, step(31, took_s=30))
    assert list(book.starts_ns) == [0, 30 * S]
    assert list(book.ends_ns) == [S, 31 * S]


def test_waits_are_summed():
    book = ledger()
    book.add(S, ACTOR, step(1, held_ns=7))
    book.add(2 * S, ACTOR, step(2))
    assert book.held_ns == 7


def test_staleness_is_the_steps_from_snapshot_to_adoption():
    book = ledger()
    book.add(S, ACTOR, step(1))
    book.add(S, ACTOR, do.Snapshot(0, 1, 1))
    for at_s in (2, 3, 4):
        book.add(at_s * S, ACTOR, step(at_s))
    book.add(4 * S, ACTOR, do.Adopt(0, 1, "d", True, False, False))
    book.add(4 * S, ACTOR, do.Adopt(0, 2, "e", False, False, False))
    assert (book.stale_steps, book.stale_adoptions) == (3, 1)


def test_merges_and_their_tokens_are_counted_by_learner():
    book = ledger()
    book.add(S, "syncer", Stored(MemberRecord(1, "a", "k", 1, 1, 0), True))
    book.add(2 * S, "syncer", merge(1, 0, "a", "b"))
    book.add(3 * S, "syncer", merge(2, 1, "a"))
    assert (book.merges, book.offers) == (2, 3)
    assert book.merged_tokens == {"a": 200, "b": 100}
    assert book.admitted_ns == {"a": S}


def test_the_digest_covers_what_was_stored_and_when():
    digests = []
    for at_ns, version in ((S, 1), (S, 1), (2 * S, 1), (S, 2)):
        book = ledger()
        book.add(at_ns, "syncer", merge(version, 0, "a"))
        digests.append(book.digest())
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_lines_are_kept_only_on_request():
    book, keeper = ledger(), Ledger(keeps=True)
    keeper.begin_life(ACTOR, "a", S)
    for one in (book, keeper):
        one.add(S, ACTOR, step(1))
    assert (len(book), len(keeper)) == (0, 1)
