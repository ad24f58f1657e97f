"""A disk that refuses is told of once, shown as long as it lasts, and once more when it is over."""

from __future__ import annotations

import atoll
from atoll.runtime.books import Books
from atoll.runtime.disk_trouble import DiskTrouble

S = 1_000_000_000
FULL = "no space left on the disk"


def test_trouble_is_news_when_it_begins_and_when_it_ends_and_not_in_between():
    trouble = DiskTrouble()
    assert trouble.tried("commit", "", 0) is None
    began = trouble.tried("commit", FULL, 1 * S)
    assert began == ("store", f"{FULL}: nothing can be committed, so nothing is merged")
    assert trouble.tried("commit", FULL, 2 * S) is None
    assert trouble.tried("commit", "", 9 * S) == ("writable", "the syncer commits again, after 8 s")
    assert trouble.tried("commit", "", 10 * S) is None


def test_another_reason_is_news_and_the_trouble_is_as_old_as_before():
    trouble = DiskTrouble()
    trouble.tried("tape", FULL, 0)
    assert trouble.tried("tape", "input/output error", 1 * S) is not None
    (problem,) = trouble.problems(3 * S)
    assert problem == (
        "input/output error, for 3 s: the tape cannot be written, its lines wait in memory. "
        "Learners train on. Mend the disk: it goes on by itself."
    )


def test_all_that_one_reason_keeps_from_happening_is_one_problem_with_its_cure():
    trouble = DiskTrouble()
    trouble.tried("snapshot", FULL, 1 * S)
    trouble.tried("commit", FULL, 2 * S)
    assert trouble.problems(11 * S) == [
        "no space left on the disk, for 10 s: nothing can be committed, so nothing is merged; no snapshot "
        "can be written, the last one stays in force. Learners train on. Free some space: it goes on by "
        "itself."
    ]


def test_only_commits_that_are_refused_block_the_run():
    trouble = DiskTrouble()
    trouble.tried("snapshot", FULL, 0)
    trouble.tried("tape", FULL, 0)
    assert not trouble.is_blocked
    trouble.tried("commit", FULL, 0)
    assert trouble.is_blocked
    trouble.tried("commit", "", 1 * S)
    assert not trouble.is_blocked


def test_lines_that_were_lost_stay_a_problem():
    trouble = DiskTrouble(lost_lines=12_345)
    (problem,) = trouble.problems(0)
    assert problem.startswith("12,345 lines of the tape were lost")


def test_the_books_show_trouble_among_the_problems_and_tell_it_once():
    books = Books(atoll.RunConfig(), "reef", 0)
    for at_s in range(1, 5):
        books.tried("commit", FULL, at_s * S)
    status = books.status(None, 5 * S, (0, 0))
    assert [note["kind"] for note in status["notes"]] == ["store"]
    assert status["problems"] == books.disk.problems(5 * S) != []
    books.tried("commit", "", 6 * S)
    status = books.status(None, 6 * S, (0, 0))
    assert [note["kind"] for note in status["notes"]] == ["store", "writable"]
    assert status["problems"] == []
