"""Deliberate bugs: each is a patch on the core, applied one at a time.

The simulator must catch every one of them, and only because of faults: without any, each bug
hides. That is what makes the table a proof that the simulator can fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import gates, learner, records, rounds, syncer
from atoll.core import messages as msg
from atoll.core.gates import NormGate
from atoll.core.learner import LearnerMachine
from atoll.core.quorum import Close, Wait
from atoll.core.records import Contribution, StoredState
from atoll.core.round import Phase
from atoll.core.rounds import Rounds
from atoll.core.schedule import Schedule
from atoll.core.syncer import SyncerMachine
from atoll.sim import disk

Patch = tuple[Any, Any, Any]
SYNCER_EVENTS = vars(syncer)["_HANDLERS"]
SYNCER_MESSAGES = vars(syncer)["_FROM_LEARNER"]


@dataclass(frozen=True)
class Bug:
    """A name, what it gets wrong, its patches, and a seed that is known to show it."""

    name: str
    wrong: str
    patches: tuple[Patch, ...]
    known_seed: int = 1

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The core with this bug in it."""
        kept = [(owner, name, _members(owner)[name]) for owner, name, _ in self.patches]
        try:
            for owner, name, value in self.patches:
                _put(owner, name, value)
            yield
        finally:
            for owner, name, value in kept:
                _put(owner, name, value)


def _members(owner: Any) -> Any:
    return owner if isinstance(owner, dict) else vars(owner)


def _put(owner: Any, name: Any, value: Any) -> None:
    """Patch an attribute, or an entry of a table of handlers."""
    if isinstance(owner, dict):
        owner[name] = value
    else:
        setattr(owner, name, value)


def _session_without_fencing(self: SyncerMachine, message: Any) -> Any:
    session = self.desk.sessions.get(message.name)
    return session if session is not None and message.epoch == self.desk.epoch else None


def _is_current_by_number(self: SyncerMachine, message: Any, session: Any) -> bool:
    return bool(message.incarnation == session.incarnation)


_why_not = LearnerMachine._why_not


def _always_offers(self: LearnerMachine, slot: Any, ask: Any) -> str:
    """Once the syncer has restarted, whoever has a base offers."""
    reason = _why_not(self, slot, ask)
    return "" if self.epoch > 1 and slot.version >= 0 else reason


_screen = gates.screen


def _screen_without_contribution(header: Any, session: Any, fragments: Any, held: Any, params: Any) -> Any:
    return _screen(header, session, fragments, held if header.epoch == 1 else None, params)


def _screen_without_base(header: Any, session: Any, fragments: Any, held: Any, params: Any) -> Any:
    refusal = _screen(header, session, fragments, held, params)
    return None if refusal and header.epoch > 1 and "is not current" in refusal.reason else refusal


def _screen_without_healing(header: Any, session: Any, fragments: Any, held: Any, params: Any) -> Any:
    refusal = _screen(header, session, fragments, held, params)
    return None if refusal and "not healed" in refusal.reason else refusal


def _may_offer_again(self: SyncerMachine, session: Any) -> bool:
    return bool(session.healed or (session.incarnation > 1 and session.holdings))


_committed = SyncerMachine._committed


def _committed_anyway(self: SyncerMachine, event: Any) -> None:
    pending = self.desk.pending.get(event.ticket)
    if not event.ok and pending is not None and isinstance(pending.record, records.RoundRecord):
        event = type(event)(event.at_ns, event.ticket, True, "")
    _committed(self, event)


def _put_then_publish(self: Rounds, event: Any) -> None:
    """Publishes when the delta is written, before the commit, if the write had to be repeated."""
    rnd = self._at(event.fragment, event.round, Phase.PUT)
    _delta_put(self, event)
    if rnd is None or not event.ok or rnd.number not in _RETRIED.setdefault(id(self), set()):
        return
    desk = self.desk
    assert rnd.merged is not None
    for session in desk.sessions.values():
        version = desk.state.fragments[rnd.fragment].version + 1
        desk.send(
            session,
            msg.Publish(
                desk.epoch,
                session.incarnation,
                rnd.fragment,
                rnd.number,
                version,
                rnd.merged.digest,
                msg.FULL,
                "",
                "none",
                "",
                0,
                1,
            ),
        )


_RETRIED: dict[int, set[int]] = {}
_delta_put = Rounds.delta_put
_retry_put = Rounds.retry_put


def _remember_retry(self: Rounds, p: int) -> None:
    rnd = self.open.get(p)
    if rnd is not None:
        _RETRIED.setdefault(id(self), set()).add(rnd.number)
    _retry_put(self, p)


def _lacks_two(self: Rounds, rnd: Any) -> bool:
    least: int = self.desk.params.min_quorum
    return len(rnd.headers) < (least - 1 if rnd.refused and least > 1 else least)


_judge = vars(rounds)["judge"]


def _judge_for_ever(view: Any, now_ns: int) -> Any:
    verdict = _judge(view, now_ns)
    if isinstance(verdict, Close) and view.missing and now_ns < view.deadline_ns:
        return Wait("grace window open", view.deadline_ns)
    return verdict


_restart_interval = LearnerMachine._restart_interval


def _keep_counters(self: LearnerMachine, p: int, slot: Any, fate: Any) -> None:
    origin, steps = slot.origin, slot.origin_steps
    _restart_interval(self, p, slot, fate)
    if self.epoch > 1 and slot.epoch == self.epoch - 1:
        slot.origin, slot.origin_steps = origin, steps


_apply_round = StoredState._apply_round


def _forget_tokens(self: StoredState, record: Any) -> None:
    before = self.merged_tokens
    _apply_round(self, record)
    if len(record.contributors) > 1:
        self.merged_tokens = before + record.contributors[0].end - record.contributors[0].start


_jump_steps = vars(Schedule)["jump_steps"].fget


_RESTARTED: set[int] = set()
_loaded = SyncerMachine._loaded


def _remember_restart(self: SyncerMachine, event: Any) -> None:
    (_RESTARTED.add if event.state.epoch else _RESTARTED.discard)(id(self.desk.schedule))
    _loaded(self, event)


def _never_jump(self: Schedule) -> int:
    return 10**9 if id(self) in _RESTARTED else int(_jump_steps(self))


def _do_nothing(self: Any, *args: Any) -> None:
    return None


_body_deadline_ns = Rounds._body_deadline_ns


def _fixed_deadline(self: Rounds, rnd: Any, name: str) -> int:
    if rnd.headers[name].incarnation > 1:
        return int(rnd.closed_ns) + self.desk.step_ns() // 4
    return int(_body_deadline_ns(self, rnd, name))


_serve = SyncerMachine._serve


def _serve_once(self: SyncerMachine, now_ns: int, session: Any) -> None:
    """Sends each version once: what is lost stays lost."""
    patience = type(session).patience_ns
    try:
        type(session).patience_ns = lambda s, tries, retry_ns: 10**18
        _serve(self, now_ns, session)
    finally:
        type(session).patience_ns = patience


def _commit_lazily(*purposes: str) -> Any:
    from atoll.core.desk import Desk

    commit = Desk.commit

    def lazy(self: Any, purpose: Any, record: Any, *, sync: bool = True) -> None:
        commit(self, purpose, record, sync=sync and purpose not in purposes)

    return lazy


def _desk() -> Any:
    from atoll.core.desk import Desk

    return Desk


def _put_lazily(self: Rounds, rnd: Any) -> None:
    self.desk.out.append(do.PutDelta(rnd.fragment, rnd.number, rnd.merged.delta_digest, False))


def _is_for_any_epoch(self: LearnerMachine, message: Any) -> bool:
    return bool(self.state == "joined" and message.incarnation == self.incarnation)


_fate_of = vars(learner)["fate_of"]


def _fate_by_verdict(offer: Any, publish: Any) -> Any:
    """Believes the verdict of the newest round only: a lost publish is a lost merge."""
    fate = _fate_of(offer, publish)
    if fate == "merged" and publish.verdict != "merged":
        return "late"
    return fate


def _dissolve_and_forget(self: LearnerMachine, p: int, slot: Any) -> None:
    """After a restart of the syncer, an offer whose round ended is given up with its progress."""
    offer = slot.offer
    if self.epoch > 1 and offer.start >= slot.origin:
        slot.origin, slot.origin_steps = offer.end, offer.end_steps
        slot.discarded += offer.end - offer.start
    _dissolve(self, p, slot)


_dissolve = LearnerMachine._dissolve


def _judge_norm_only(self: NormGate, result: Any) -> Any:
    median = self.median
    if self.factor and median > 0 and result.norm > self.factor * median:
        return gates.Refusal("rejected", "norm")
    return None


_merged = Rounds.merged


def _merged_unchecked(self: Rounds, event: Any) -> None:
    _merged(self, replace(event, finite=True))


def _never_past_recall(self: Rounds, name: str) -> bool:
    return False


_apply_rollback = StoredState._apply_rollback


def _rollback_keeps_contributions(self: StoredState, rollback: Any) -> None:
    kept = dict(self.contributions)
    _apply_rollback(self, rollback)
    for key, held in kept.items():
        now = self.contributions[key]
        self.contributions[key] = Contribution(held.version, now.upto, now.tokens)


def _close_at_once(self: Rounds, rnd: Any, now_ns: int) -> None:
    """Bodies that are asked for again are not waited for."""
    if rnd.phase is Phase.BODIES and len(rnd.asked_at_ns) and rnd.merged is None:
        late = [n for n in rnd.headers if n not in rnd.bodies and rnd.asked_at_ns[n] > rnd.closed_ns]
        if late and rnd.bodies:
            offers = tuple((n, rnd.headers[n].incarnation) for n in sorted(rnd.bodies) if n in rnd.headers)
            for name in late:
                del rnd.headers[name]
            rnd.phase = Phase.INSPECT
            self.desk.out.append(do.Inspect(rnd.fragment, rnd.number, offers))
            return
    _await_bodies(self, rnd, now_ns)


_await_bodies = Rounds.await_bodies

_attach = SyncerMachine._attach


def _hello_is_hearing(self: SyncerMachine, now_ns: int, hello: Any, incarnation: int, shard: int) -> None:
    _attach(self, now_ns, hello, incarnation, shard)
    self.desk.sessions[hello.name].echo_ns = now_ns


BUGS: tuple[Bug, ...] = (
    Bug(
        "hello-taken-for-hearing",
        "a learner that hears nothing, and so says hello again and again, counts as connected",
        ((SyncerMachine, "_attach", _hello_is_hearing),),
        known_seed=3,
    ),
    Bug(
        "no-fencing",
        "messages of an older incarnation are taken for the living one's",
        (
            (SyncerMachine, "_session_of", _session_without_fencing),
            (SyncerMachine, "_send_fenced", _do_nothing),
            (Rounds, "fence", _do_nothing),
        ),
        known_seed=5,
    ),
    Bug(
        "old-epoch-by-number",
        "an earlier epoch's offer is accepted because its round has the right number",
        ((SyncerMachine, "is_current", _is_current_by_number),),
        known_seed=39,
    ),
    Bug(
        "merged-twice-after-late-publish",
        "progress is offered and merged again while the publish that contains it is on its way",
        (
            (LearnerMachine, "_why_not", _always_offers),
            (rounds, "screen", _screen_without_contribution),
        ),
        known_seed=3,
    ),
    Bug(
        "publish-despite-failed-commit",
        "a round is published although the store refused it",
        ((SYNCER_EVENTS, ev.Committed, _committed_anyway),),
        known_seed=1,
    ),
    Bug(
        "publish-before-commit",
        "after a write that had to be repeated, a round is published before its commit",
        ((Rounds, "delta_put", _put_then_publish), (Rounds, "retry_put", _remember_retry)),
        known_seed=3,
    ),
    Bug(
        "quorum-off-by-one",
        "a round that lost an offer after its close merges with K-1",
        ((Rounds, "lacks_quorum", _lacks_two),),
        known_seed=1,
    ),
    Bug(
        "grace-never-closes",
        "the grace window stays open until the fragment is due again",
        ((rounds, "judge", _judge_for_ever),),
        known_seed=3,
    ),
    Bug(
        "stale-base-accepted",
        "an offer on a base older than the previous version is merged",
        (
            (LearnerMachine, "_why_not", _always_offers),
            (rounds, "screen", _screen_without_base),
            (SyncerMachine, "may_offer", _may_offer_again),
        ),
        known_seed=15,
    ),
    Bug(
        "counters-not-reset",
        "counters do not restart at the first adoption after a restart of the syncer",
        ((LearnerMachine, "_restart_interval", _keep_counters),),
        known_seed=2,
    ),
    Bug(
        "unhealed-donor",
        "a learner that came back offers before it holds every fragment",
        (
            (SyncerMachine, "may_offer", _may_offer_again),
            (rounds, "screen", _screen_without_healing),
        ),
        known_seed=3,
    ),
    Bug(
        "torn-record-accepted",
        "a delta is believed without its digest",
        ((disk.File, "is_intact", property(lambda self: True)),),
        known_seed=4,
    ),
    Bug(
        "tokens-lost-in-ledger",
        "only the first contributor's tokens are booked",
        ((StoredState, "_apply_round", _forget_tokens),),
        known_seed=2,
    ),
    Bug(
        "burst-after-outage",
        "after an outage of the syncer every missed round is fired",
        (
            (Schedule, "jump_steps", property(_never_jump)),
            (SYNCER_EVENTS, ev.Loaded, _remember_restart),
        ),
        known_seed=1,
    ),
    Bug(
        "slow-link-starved",
        "the bodies of a learner that came back get a fixed deadline instead of their link's",
        ((Rounds, "_body_deadline_ns", _fixed_deadline),),
        known_seed=18,
    ),
    Bug(
        "lost-publish-never-resent",
        "a version is sent to a learner once, whether it arrives or not",
        ((SyncerMachine, "_serve", _serve_once), (SYNCER_MESSAGES, msg.Want, _do_nothing)),
        known_seed=41,
    ),
    Bug(
        "incarnation-not-durable",
        "an admission is announced before it is on disk",
        ((_desk(), "commit", _commit_lazily("member")),),
        known_seed=16,
    ),
    Bug(
        "epoch-not-durable",
        "the syncer speaks before its epoch is on disk",
        ((_desk(), "commit", _commit_lazily("epoch")),),
        known_seed=3,
    ),
    Bug(
        "delta-not-synced",
        "a round is committed while its delta is still in the cache",
        ((Rounds, "_put", _put_lazily),),
        known_seed=3,
    ),
    Bug(
        "lower-epoch-believed",
        "a learner obeys what an earlier life of the syncer said",
        ((LearnerMachine, "_is_for_me", _is_for_any_epoch),),
        known_seed=1868,
    ),
    Bug(
        "fate-by-verdict-alone",
        "a learner that missed a publish counts its merged tokens as late",
        ((learner, "fate_of", _fate_by_verdict),),
        known_seed=10,
    ),
    Bug(
        "progress-given-up",
        "after a restart of the syncer an unresolved offer's progress is dropped from the counters only",
        ((LearnerMachine, "_dissolve", _dissolve_and_forget),),
        known_seed=1,
    ),
    Bug(
        "nan-merged",
        "the gate compares norms and forgets that NaN compares with nothing",
        ((NormGate, "judge", _judge_norm_only), (Rounds, "merged", _merged_unchecked)),
        known_seed=1,
    ),
    Bug(
        "offer-of-the-dead-merged",
        "offers of a fenced life stay in the rounds that gather",
        ((Rounds, "fence", _do_nothing),),
        known_seed=7,
    ),
    Bug(
        "admitted-during-commit",
        "a new life is admitted while an offer of the old one is being committed",
        ((Rounds, "is_past_recall", _never_past_recall),),
        known_seed=1,
    ),
    Bug(
        "full-disk-forgotten",
        "a write that the disk refused is not tried again",
        ((Rounds, "retry_put", _do_nothing),),
        known_seed=3,
    ),
    Bug(
        "rollback-refuses-offers",
        "after a rollback, learners are held to versions that no longer exist",
        ((StoredState, "_apply_rollback", _rollback_keeps_contributions),),
        known_seed=82,
    ),
    Bug(
        "missing-body-forgotten",
        "an offer whose body had to be asked for again is dropped without looking at the quorum",
        ((Rounds, "await_bodies", _close_at_once),),
        known_seed=75,
    ),
)
