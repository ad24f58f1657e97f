"""Notes as sentences: who was killed, who came back, what was dropped."""

from __future__ import annotations

import pytest

from atoll.observe.notes import Line, fresh, tell
from tests.unit.observe.samples import note


@pytest.mark.parametrize(
    ("kind", "who", "reason", "text"),
    [
        ("admitted", "learner-1", "incarnation 1", "learner-1 joined"),
        ("admitted", "learner-1", "incarnation 2", "learner-1 is back as incarnation 2, healing"),
        ("back", "learner-1", "heard again", "learner-1 is back: heard again"),
        ("killed", "learner-1", "", "learner-1 was killed"),
        ("restarted", "learner-1", "", "learner-1 was restarted"),
        ("lost", "learner-1", "silent for 5.1 s", "learner-1 was lost: silent for 5.1 s"),
        ("left", "learner-1", "said goodbye", "learner-1 left"),
        ("left", "learner-1", "SIGTERM", "learner-1 left: SIGTERM"),
        ("fenced", "a", "", "an older incarnation of a was fenced off"),
        ("refused", "a", "wrong token", "a was refused: wrong token"),
        ("dropped", "a", "late: no body in time", "an offer of a dropped, late: no body in time"),
        ("cancelled", "", "1 of 2 offers", "a round cancelled: 1 of 2 offers"),
        ("store", "", "not committed: disk full", "store: not committed: disk full"),
        ("writable", "", "the syncer commits again", "the syncer commits again"),
        ("quorum", "", "1 of 2 healed", "quorum: 1 of 2 healed"),
        ("damage", "", "delta 3 is unreadable", "the store is damaged: delta 3 is unreadable"),
        ("drain", "", "budget of 800 ticks spent", "the last rounds begin: budget of 800 ticks spent"),
        ("finished", "", "", "the run is finished"),
        ("malformed", "a", "Report does not fit", "a: malformed: Report does not fit"),
    ],
)
def test_each_kind_has_its_sentence(kind: str, who: str, reason: str, text: str):
    assert [line.text for line in tell([note(1.0, kind, who, reason)])] == [text]


def test_a_burst_is_one_sentence_with_the_time_of_its_last_note():
    notes = [note(float(i), "admitted", f"learner-{i}", "incarnation 1") for i in range(16)]
    text = "learner-0, learner-1 and 14 more joined"
    assert tell(notes) == [Line(15.0, text, "good")]


def test_repeated_drops_of_one_learner_are_counted():
    notes = [note(float(i), "dropped", "slow", "late: no body in time") for i in range(12)]
    assert tell(notes) == [Line(11.0, "12 offers of slow dropped, late: no body in time", "bad")]


def test_another_reason_or_kind_is_another_sentence():
    notes = [
        note(1.0, "cancelled", "", "a"),
        note(2.0, "cancelled", "", "b"),
        note(3.0, "killed", "x"),
        note(4.0, "killed", "y"),
        note(5.0, "cancelled", "", "b"),
    ]
    assert [line.text for line in tell(notes)] == [
        "a round cancelled: a",
        "a round cancelled: b",
        "x, y were killed",
        "a round cancelled: b",
    ]


def test_a_note_without_anything_in_it_is_still_a_sentence():
    assert tell([{}]) == [Line(None, "note")]
    assert tell([{"kind": "lost"}])[0].text == "somebody was lost"
    assert tell([]) == []


def test_escape_codes_in_a_name_or_reason_do_not_pass():
    told = tell([note(1.0, "refused", "\x1b[2Jevil", "bad\nname")])[0].text
    assert told == " [2Jevil was refused: bad name"


def test_only_new_notes_are_fresh_also_when_old_ones_fall_off():
    a, b, c, d = (note(float(i), "lost", f"learner-{i}") for i in range(4))
    assert fresh([], [a, b]) == [a, b]
    assert fresh([a, b], [a, b]) == []
    assert fresh([a, b, c], [b, c, d]) == [d]


def test_a_note_that_comes_in_between_is_fresh_and_equal_notes_are_counted():
    a, b, c = (note(float(i), "lost", "x") for i in range(3))
    assert fresh([a, c], [a, b, c]) == [b]
    assert fresh([a], [a, a]) == [a]
