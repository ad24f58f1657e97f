"""The books of one life of the syncer, taken up by the next."""

from __future__ import annotations

import pytest

from atoll.config import RunConfig
from atoll.core import messages as msg
from atoll.runtime.bookkeeping import restore, save
from atoll.runtime.books import Books
from atoll.wire.messages import Telemetry

SECOND = 1_000_000_000


def busy_books() -> Books:
    """One learner, admitted at second 1, with a few steps and a word about itself at second 5."""
    books = Books(RunConfig(), "run", 0)
    books.admitted("a", 2, 3, "10.0.0.1:5", 1 * SECOND)
    for clock in (10, 11, 12):
        books.heard(msg.Report("a", 2, 1, clock, clock, 100 * clock, SECOND, 0, -1, 0, ()), clock)
    telemetry = Telemetry("a", 2, 1.5, 3, 300, 9.0, 7, SECOND, 4, 8, 5 * SECOND, 0, 1, 64, "cpu", "")
    books.heard(telemetry, 12)
    books.num_places, books.num_merged, books.body_bits = 8, 6, 320
    books.note("lost", "a", "silent for 5.0 s", 4 * SECOND)
    return books


def test_counters_notes_and_learners_survive_a_restart():
    old = busy_books()
    new = Books(RunConfig(), "run", 100 * SECOND)
    assert restore(new, save(old, (11, 22), 5 * SECOND, 1000.0), 100 * SECOND, 1000.0) == (11, 22)
    assert (new.num_places, new.num_merged, new.body_bits) == (8, 6, 320)
    assert list(new.notes) == list(old.notes)
    book, before = new.learners["a"], old.learners["a"]
    assert (book.incarnation, book.shard, book.life_steps, book.tokens) == (2, 3, 2, 1200)
    assert list(book.step_ns) == list(before.step_ns)
    assert book.telemetry == before.telemetry


def test_the_time_between_two_lives_counts_and_clocks_of_two_processes_do_not_mix():
    new = Books(RunConfig(), "run", 100 * SECOND)
    restore(new, save(busy_books(), (0, 0), 5 * SECOND, 1000.0), 100 * SECOND, 1002.5)
    assert new.began_ns == 100 * SECOND - 5 * SECOND - 2_500_000_000
    assert new.learners["a"].admitted_ns == 100 * SECOND - 4 * SECOND - 2_500_000_000


def test_a_wall_clock_that_was_set_back_adds_no_time():
    new = Books(RunConfig(), "run", 0)
    restore(new, save(busy_books(), (0, 0), 5 * SECOND, 1000.0), 100 * SECOND, 900.0)
    assert new.began_ns == 95 * SECOND


def test_the_same_life_of_a_learner_goes_on_counting_after_the_restart():
    new = Books(RunConfig(), "run", 0)
    restore(new, save(busy_books(), (0, 0), 5 * SECOND, 0.0), 0, 0.0)
    new.admitted("a", 2, 3, "10.0.0.1:6", 9 * SECOND)
    new.heard(msg.Report("a", 2, 2, 13, 20, 2000, SECOND, 0, -1, 0, ()), 20)
    assert (new.learners["a"].life_steps, new.learners["a"].past_steps) == (10, 0)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"wall_s": "x"}'])
def test_books_that_cannot_be_read_cost_history_and_nothing_else(content, caplog):
    books = Books(RunConfig(), "run", 7)
    assert restore(books, content, 9, 1.0) == (0, 0)
    assert (books.began_ns, books.learners, books.num_places) == (7, {}, 0)
    assert "counters begin anew" in caplog.text


def test_a_spoiled_learner_leaves_the_books_as_they_were():
    content = save(busy_books(), (0, 0), 5 * SECOND, 0.0).replace(b'"offers": 0', b'"offers": "many"')
    books = Books(RunConfig(), "run", 7)
    assert restore(books, content, 9, 1.0) == (0, 0)
    assert (books.began_ns, books.learners) == (7, {})
