"""The checker's books: versions that begin anywhere, and intervals that can be taken out."""

from __future__ import annotations

from atoll.invariants.books import Chain, Commit, Intervals


def chain(*versions: int) -> Chain:
    return Chain([Commit(version, f"d{version}", ()) for version in versions])


def test_a_version_is_found_by_its_number_wherever_the_chain_begins():
    known = chain(7, 8, 9)
    assert known.last == Commit(9, "d9", ())
    assert known.at(8) == Commit(8, "d8", ())
    assert known.at(6) is None
    assert known.at(10) is None


def test_versions_after_one_are_given_up_in_order():
    known = chain(7, 8, 9)
    assert known.fall_back(Commit(7, "d7", ())) == chain(8, 9).commits
    assert known.commits == chain(7).commits


def test_a_chain_that_falls_back_beyond_its_beginning_begins_there():
    known = chain(7, 8)
    assert known.fall_back(Commit(5, "d5", ())) == chain(7, 8).commits
    assert known.commits == chain(5).commits


def test_an_interval_is_taken_out_whole_or_from_a_point_on():
    intervals = Intervals()
    assert intervals.add(0, 10, "before") is None
    assert intervals.add(10, 12, "merged") is None
    intervals.remove(10)
    assert intervals.rows == [(0, 10, "before")]
    intervals.remove(6)
    assert intervals.rows == [(0, 6, "before")]
    intervals.remove(8)
    assert intervals.rows == [(0, 6, "before")]
    assert intervals.add(6, 9, "merged") is None
    assert intervals.add(5, 7, "merged") == (0, 6, "before")
