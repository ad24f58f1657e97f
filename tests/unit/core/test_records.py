"""The state of a run is the fold of its records, whatever a crash left of them."""

from __future__ import annotations

from atoll.core.records import (
    MAX_LIVES,
    Contribution,
    Contributor,
    EpochRecord,
    FinishRecord,
    MemberRecord,
    Record,
    Rollback,
    RoundRecord,
    SeedRecord,
    StoredFragment,
    StoredMember,
    StoredState,
    fold,
    history,
    recover,
    version_in,
)

SEED = SeedRecord(1, "a", 1, ("s0", "s1"))


def epoch(number: int, *rollbacks: Rollback) -> EpochRecord:
    return EpochRecord(number, rollbacks)


def member(name: str, incarnation: int = 1, life: int = 11, shard: int = 0) -> MemberRecord:
    return MemberRecord(1, name, f"key-{name}", life, incarnation, shard)


def part(name: str, start: int, end: int, incarnation: int = 1) -> Contributor:
    return Contributor(name, incarnation, start, end, 1, 0, 1.0)


def merge(p: int, version: int, *parts: Contributor, t: int = 0, tag: str = "") -> RoundRecord:
    """Version `version` of fragment p; its delta is named x<p>.<version><tag>."""
    name = f"{p}.{version}{tag}"
    return RoundRecord(1, version, p, version, f"d{name}", f"x{name}", t, parts)


BEGINNING: list[Record] = [epoch(1), member("a"), member("b", shard=1), SEED]
HISTORY: list[Record] = [
    *BEGINNING,
    merge(0, 1, part("a", 0, 10), part("b", 0, 30), t=3),
    merge(1, 1, part("a", 0, 20), t=5),
    merge(0, 2, part("a", 10, 25), t=9),
    merge(0, 3, part("b", 30, 90), t=12),
]


def test_nothing_folds_into_an_empty_state():
    assert fold([]) == StoredState()


def test_a_seed_is_version_zero_of_every_fragment():
    assert fold(BEGINNING).fragments == [StoredFragment(0, "s0", ""), StoredFragment(0, "s1", "")]


def test_a_fold_holds_versions_digests_clock_ledger_and_contributions():
    state = fold(HISTORY)
    assert (state.epoch, state.t, state.merges, state.merged_tokens) == (1, 12, 4, 135)
    assert state.fragments == [StoredFragment(3, "d0.3", "d0.2"), StoredFragment(1, "d1.1", "s1")]
    assert state.contributions == {
        ("a", 0): Contribution(2, 25, 25),
        ("b", 0): Contribution(3, 90, 90),
        ("a", 1): Contribution(1, 20, 20),
    }
    assert not state.finished


def test_a_finish_record_ends_the_run_at_its_tick():
    state = fold([*HISTORY, FinishRecord(1, 40, "budget")])
    assert (state.finished, state.t) == (True, 40)


def test_t_never_falls_in_a_fold():
    assert fold([*HISTORY, merge(1, 2, part("a", 20, 30), t=4)]).t == 12


def test_a_new_incarnation_begins_without_contributions_and_the_others_keep_theirs():
    state = fold([*HISTORY, member("a", incarnation=2, life=12)])
    assert state.contributions == {("b", 0): Contribution(3, 90, 90)}
    assert state.members["a"] == StoredMember("a", "key-a", 2, 0, (11, 12))
    assert state.merged_tokens == 135


def test_the_lives_of_a_name_that_are_remembered_are_bounded():
    records = [member("a", incarnation=n, life=n) for n in range(1, MAX_LIVES + 11)]
    lives = fold(records).members["a"].lives
    assert lives == tuple(range(11, MAX_LIVES + 11))


def test_a_copy_goes_on_alone():
    state = fold(HISTORY)
    before = fold(HISTORY)
    other = state.copy()
    assert other == state
    other.apply(merge(1, 2, part("b", 0, 5), t=99))
    other.apply(member("c"))
    other.apply(epoch(2, Rollback(0, 3, 2, "d0.2", "d0.1", (part("b", 30, 90),))))
    assert state == before


def test_history_lists_the_versions_that_count():
    chains = history(HISTORY)
    assert {p: [r.version for r in chain] for p, chain in chains.items()} == {0: [1, 2, 3], 1: [1]}


# Recovery


def intact_but(*torn: str):
    return lambda record: record.delta_digest not in torn


def test_a_store_without_damage_recovers_to_its_fold():
    state = recover(HISTORY, intact_but())
    assert state == fold(HISTORY)
    assert (state.rollbacks, state.problems) == ((), ())


def test_a_torn_delta_names_the_rollback_and_what_goes_with_it():
    state = recover(HISTORY, intact_but("x0.2"))
    assert state.rollbacks == (Rollback(0, 3, 1, "d0.1", "s0", (part("a", 10, 25), part("b", 30, 90))),)
    assert state.problems == (
        "fragment 0: the delta of version 2 is torn or missing, so versions 2 to 3 cannot be rebuilt",
    )


def test_until_the_next_epoch_is_stored_a_rollback_is_only_announced():
    state = recover(HISTORY, intact_but("x0.2"))
    assert state.fragments == fold(HISTORY).fragments
    assert state.merged_tokens == 135


def test_a_first_version_that_is_torn_leads_back_to_the_seed():
    (rollback,) = recover(HISTORY, intact_but("x1.1")).rollbacks
    assert rollback == Rollback(1, 1, 0, "s1", "", (part("a", 0, 20),))


def test_the_next_epoch_makes_a_rollback_history_and_voids_its_contributions():
    found = recover(HISTORY, intact_but("x0.2"))
    state = fold([*HISTORY, epoch(2, *found.rollbacks)])
    assert state.fragments[0] == StoredFragment(1, "d0.1", "s0")
    assert (state.epoch, state.merges, state.merged_tokens) == (2, 2, 60)
    assert state.contributions["a", 0] == Contribution(1, 10, 10)
    assert state.contributions["b", 0] == Contribution(1, 30, 30)
    assert state.contributions["a", 1] == Contribution(1, 20, 20)
    assert state.rollbacks == ()


def test_a_rollback_voids_only_what_the_living_incarnation_contributed():
    records: list[Record] = [
        *BEGINNING,
        merge(0, 1, part("a", 0, 10)),
        member("a", incarnation=2, life=12),
        merge(0, 2, part("a", 0, 7, incarnation=2)),
    ]
    found = recover(records, intact_but("x0.1"))
    state = fold([*records, epoch(2, *found.rollbacks)])
    assert state.contributions["a", 0] == Contribution(0, 0, 0)
    assert (state.merged_tokens, state.merges) == (0, 0)


def test_after_a_rollback_a_new_history_begins_where_the_old_one_stopped():
    found = recover(HISTORY, intact_but("x0.2"))
    records = [*HISTORY, epoch(2, *found.rollbacks), merge(0, 2, part("b", 90, 95), tag="new")]
    state = recover(records, intact_but("x0.2"))
    assert state.rollbacks == ()
    assert state.fragments[0] == StoredFragment(2, "d0.2new", "d0.1")
    assert [r.digest for r in history(records)[0]] == ["d0.1", "d0.2new"]


def test_the_new_history_can_be_torn_like_the_old_one():
    found = recover(HISTORY, intact_but("x0.2"))
    records = [*HISTORY, epoch(2, *found.rollbacks), merge(0, 2, part("b", 90, 95), tag="new")]
    (again,) = recover(records, intact_but("x0.2", "x0.2new")).rollbacks
    assert again == Rollback(0, 2, 1, "d0.1", "s0", (part("b", 90, 95),))


def test_a_history_without_its_beginning_goes_on_from_the_fold_of_it():
    found = recover(HISTORY, intact_but("x0.3"))
    records = [*HISTORY, epoch(2, *found.rollbacks), merge(0, 3, part("b", 30, 40), tag="new")]
    for num_cut in range(len(BEGINNING), 8):  # not behind the rollback, which a base may not hide
        base, rest = fold(records[:num_cut]), records[num_cut:]
        assert fold(rest, base) == fold(records)
        whole = [record for record in history(records)[0] if record.version > version_in(base, 0)]
        assert history(rest, base).get(0, []) == whole
        assert recover(rest, intact_but(), base) == recover(records, intact_but())


def test_a_base_lends_its_digests_to_a_rollback():
    base = fold(HISTORY[:6])
    (rollback,) = recover(HISTORY[6:], intact_but("x0.2"), base).rollbacks
    assert (rollback,) == recover(HISTORY, intact_but("x0.2")).rollbacks
    assert (rollback.from_version, rollback.to_version, rollback.digest) == (3, 1, "d0.1")
    assert base == fold(HISTORY[:6])  # the fold goes on with a copy
