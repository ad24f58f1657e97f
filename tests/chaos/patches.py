"""The patches of the deliberate bugs: each replaces one piece of the core by a wrong one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from atoll.core import commands as do
from atoll.core import gates, learner, records, rounds, shards, syncer
from atoll.core import messages as msg
from atoll.core.admission import Admission
from atoll.core.desk import Desk
from atoll.core.donations import Donations
from atoll.core.gates import NormGate
from atoll.core.learner import LearnerMachine
from atoll.core.quorum import Close, Wait
from atoll.core.records import Contribution, StoredState
from atoll.core.round import Phase
from atoll.core.rounds import Rounds
from atoll.core.schedule import Schedule
from atoll.core.strikes import Strikes
from atoll.core.syncer import SyncerMachine
from atoll.sim.process import SyncerProcess

SYNCER_EVENTS = vars(syncer)["_HANDLERS"]
SYNCER_MESSAGES = vars(syncer)["_FROM_LEARNER"]


def session_without_fencing(self: SyncerMachine, message: Any) -> Any:
    session = self.desk.sessions.get(message.name)
    return session if session is not None and message.epoch == self.desk.epoch else None


def is_current_by_number(self: SyncerMachine, message: Any, session: Any) -> bool:
    return bool(message.incarnation == session.incarnation)


_why_not = LearnerMachine._why_not


def always_offers(self: LearnerMachine, slot: Any, ask: Any) -> str:
    """Once the syncer has restarted, whoever has a base offers."""
    reason = _why_not(self, slot, ask)
    return "" if self.epoch > 1 and slot.version >= 0 else reason


_screen = gates.screen


def screen_without_contribution(header: Any, session: Any, fragments: Any, held: Any, params: Any) -> Any:
    return _screen(header, session, fragments, held if header.epoch == 1 else None, params)


def screen_without_base(header: Any, session: Any, fragments: Any, held: Any, params: Any) -> Any:
    refusal = _screen(header, session, fragments, held, params)
    return None if refusal and header.epoch > 1 and "is not current" in refusal.reason else refusal


def screen_without_healing(header: Any, session: Any, fragments: Any, held: Any, params: Any) -> Any:
    refusal = _screen(header, session, fragments, held, params)
    return None if refusal and "not healed" in refusal.reason else refusal


def may_offer_again(self: SyncerMachine, session: Any) -> bool:
    return bool(session.healed or (session.incarnation > 1 and session.holdings))


_committed = SyncerMachine._committed


def committed_anyway(self: SyncerMachine, event: Any) -> None:
    pending = self.desk.pending.get(event.ticket)
    if not event.ok and pending is not None and isinstance(pending.record, records.RoundRecord):
        event = type(event)(event.at_ns, event.ticket, True, "")
    _committed(self, event)


def put_then_publish(self: Rounds, event: Any) -> None:
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


def remember_retry(self: Rounds, p: int) -> None:
    rnd = self.open.get(p)
    if rnd is not None:
        _RETRIED.setdefault(id(self), set()).add(rnd.number)
    _retry_put(self, p)


def lacks_two(self: Rounds, rnd: Any) -> bool:
    least: int = self.desk.params.min_quorum
    return len(rnd.headers) < (least - 1 if rnd.refused and least > 1 else least)


_judge = vars(rounds)["judge"]


def judge_for_ever(view: Any, now_ns: int) -> Any:
    verdict = _judge(view, now_ns)
    if isinstance(verdict, Close) and view.missing and now_ns < view.deadline_ns:
        return Wait("grace window open", view.deadline_ns)
    return verdict


_adopt = LearnerMachine._adopt


def keep_counters(self: LearnerMachine, p: int, slot: Any) -> None:
    origin, steps, epoch = slot.origin, slot.origin_steps, slot.epoch
    _adopt(self, p, slot)
    if self.epoch > 1 and epoch == self.epoch - 1 and self.params.adopt != "rebase":
        slot.origin, slot.origin_steps = origin, steps


_apply_round = StoredState._apply_round


def forget_tokens(self: StoredState, record: Any) -> None:
    before = self.merged_tokens
    _apply_round(self, record)
    if len(record.contributors) > 1:
        self.merged_tokens = before + record.contributors[0].end - record.contributors[0].start


_jump_steps = vars(Schedule)["jump_steps"].fget


_RESTARTED: set[int] = set()
_loaded = SyncerMachine._loaded


def remember_restart(self: SyncerMachine, event: Any) -> None:
    (_RESTARTED.add if event.state.epoch else _RESTARTED.discard)(id(self.desk.schedule))
    _loaded(self, event)


def never_jump(self: Schedule) -> int:
    return 10**9 if id(self) in _RESTARTED else int(_jump_steps(self))


def do_nothing(self: Any, *args: Any) -> None:
    return None


_body_deadline_ns = Rounds._body_deadline_ns


def fixed_deadline(self: Rounds, rnd: Any, name: str) -> int:
    if rnd.headers[name].incarnation > 1:
        return int(rnd.closed_ns) + self.desk.step_ns() // 4
    return int(_body_deadline_ns(self, rnd, name))


_serve = SyncerMachine._serve


def serve_once(self: SyncerMachine, now_ns: int, session: Any) -> None:
    """Sends each version once: what is lost stays lost."""
    patience = type(session).patience_ns
    try:
        type(session).patience_ns = lambda s, tries, retry_ns: 10**18
        _serve(self, now_ns, session)
    finally:
        type(session).patience_ns = patience


_commit = Desk.commit


def commit_lazily(kind: type) -> Any:
    """Records of this kind are announced before they are on disk."""

    def lazy(self: Desk, record: Any, *, sync: bool = True) -> None:
        _commit(self, record, sync=sync and not isinstance(record, kind))

    return lazy


def put_lazily(self: Rounds, rnd: Any) -> None:
    self.desk.out.append(do.PutDelta(rnd.fragment, rnd.number, rnd.merged.delta_digest, False))


def is_for_any_epoch(self: LearnerMachine, message: Any) -> bool:
    return bool(self.state == "joined" and message.incarnation == self.incarnation)


_fate_of = vars(learner)["fate_of"]


def fate_by_verdict(offer: Any, publish: Any) -> Any:
    """Believes the verdict of the newest round only: a lost publish is a lost merge."""
    fate = _fate_of(offer, publish)
    if fate == "merged" and publish.verdict != "merged":
        return "late"
    return fate


def dissolve_and_forget(self: LearnerMachine, p: int, slot: Any) -> None:
    """After a restart of the syncer, an offer whose round ended is given up with its progress."""
    offer = slot.offer
    if self.epoch > 1 and offer.start >= slot.origin:
        slot.origin, slot.origin_steps = offer.end, offer.end_steps
        slot.discarded += offer.end - offer.start
    _dissolve(self, p, slot)


_dissolve = LearnerMachine._dissolve


def judge_norm_only(self: NormGate, result: Any, steps: int) -> Any:
    median = self.median
    if self.factor and median > 0 and result.norm > self.factor * median:
        return gates.Refusal("rejected", "norm")
    return None


_merged = Rounds.merged


def merged_unchecked(self: Rounds, event: Any) -> None:
    _merged(self, replace(event, finite=True))


def never_past_recall(self: Rounds, name: str) -> bool:
    return False


_apply_rollback = StoredState._apply_rollback


def rollback_keeps_contributions(self: StoredState, rollback: Any) -> None:
    kept = dict(self.contributions)
    _apply_rollback(self, rollback)
    for key, held in kept.items():
        now = self.contributions[key]
        self.contributions[key] = Contribution(held.version, now.upto, now.tokens)


def close_at_once(self: Rounds, rnd: Any, now_ns: int) -> None:
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

_attach = Admission.attach


def hello_is_hearing(self: Admission, now_ns: int, hello: Any, incarnation: int, shard: int) -> None:
    _attach(self, now_ns, hello, incarnation, shard)
    self.desk.sessions[hello.name].echo_ns = now_ns


_release = Strikes.release


def release_by_time_alone(self: Strikes, now_ns: int, is_needed: bool) -> None:
    _release(self, now_ns, False)


def begin_anew_without_settling(self: LearnerMachine) -> None:
    self.is_tainted = False


def donors_by_presence(self: Donations, recipient: Any, now_ns: int) -> Any:
    present = self.desk.connected(now_ns)
    return [s for s in present if s.name != recipient.name] if self.desk.params.donates else []


_apply = StoredState.apply


def apply_without_tick(self: StoredState, record: Any) -> None:
    t = self.t
    _apply(self, record)
    self.t = max(t, self.t)


def rollback_voids_nothing(self: StoredState, rollback: Any) -> None:
    _apply_rollback(self, replace(rollback, voided=()))


_welcome = LearnerMachine._welcome


def welcome_without_way_back(self: LearnerMachine, now_ns: int, message: Any) -> None:
    _welcome(self, now_ns, replace(message, rewound=0))


def welcome_after_the_end(self: LearnerMachine, now_ns: int, message: Any) -> None:
    """Who has heard of the end believes in it for ever."""
    end = self.finished, self.final
    _welcome(self, now_ns, message)
    if end[0]:
        self.finished, self.final = end


_shard_for = shards.shard_for


def own_shard_for(name: str, members: Any, num_shards: int, is_present: Any) -> int:
    mine = members.get(name)
    return int(mine.shard) if mine is not None else _shard_for(name, members, num_shards, is_present)


_replay_files = SyncerProcess._replay_files


def replay_at_full_momentum(self: SyncerProcess, rollbacks: Any) -> Any:
    """As if a record did not say what mu was multiplied by."""
    content, deltas, goal = _replay_files(self, rollbacks)
    return content, [(p, delta, 1.0) for p, delta, _ in deltas], goal
