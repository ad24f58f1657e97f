"""The syncer machine: owns the global fragments, runs the rounds, waits for nobody.

It begins by reading its store and counting its epoch up there; before that is durable it says
nothing. Then learners say hello, the first one seeds, reports move the clock t, t opens rounds
(`rounds`), and committed rounds are published to everybody. Whoever reports an old base is sent
the fragment again: healing, a lost message and a rolled-back version are the same case. When the
budget is spent, one last round per fragment is run under a deadline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.admission import Admission
from atoll.core.desk import Desk
from atoll.core.donations import Donations
from atoll.core.gates import is_well_formed
from atoll.core.members import Session
from atoll.core.params import RunParams
from atoll.core.records import EpochRecord, FinishRecord, MemberRecord, RoundRecord, SeedRecord
from atoll.core.round import NO_OFFER
from atoll.core.rounds import Rounds
from atoll.core.schedule import Schedule
from atoll.core.seeding import Seeding
from atoll.core.strikes import Strikes

__all__ = ["HEAL_WINDOW", "SyncerMachine"]

HEAL_WINDOW = 4
"""Whole fragments on their way to one learner at the same time."""


@dataclass(slots=True)
class SyncerMachine:
    """Events in, commands out. See the module for how it works."""

    params: RunParams
    desk: Desk = field(init=False)
    rounds: Rounds = field(init=False)
    seeding: Seeding = field(init=False)
    admission: Admission = field(init=False)
    donations: Donations = field(init=False)
    strikes: Strikes = field(init=False)
    is_active: bool = False
    """The epoch is durable: from here on it may speak."""
    accepts_loss: bool = False
    has_quorum: bool = False
    drain_reason: str = ""
    drain_until_ns: int = 0
    is_finishing: bool = False

    def __post_init__(self) -> None:
        self.desk = Desk(self.params, Schedule(self.params))
        self.strikes = Strikes(self.desk)
        self.rounds = Rounds(self.desk, self.strikes)
        self.seeding = Seeding(self.desk)
        self.admission = Admission(self.desk, self.rounds, self.seeding)
        self.donations = Donations(self.desk, self.strikes)

    def handle(self, event: ev.Event) -> list[do.Command]:
        """Take in one event; returns the commands to perform, in order."""
        self.desk.out = []
        _HANDLERS[type(event)](self, event)
        return self.desk.out

    # Boot and store

    def _booted(self, event: ev.Booted) -> None:
        self.accepts_loss = event.accepts_loss
        if event.budget is not None:
            ticks, tokens, drain_ns = event.budget
            params = replace(self.params, budget_ticks=ticks, budget_tokens=tokens, drain_ns=drain_ns)
            self.params = self.desk.params = self.desk.schedule.params = params
        self.desk.out.append(do.Load())

    def _loaded(self, event: ev.Loaded) -> None:
        self.desk.state = event.state.copy()
        for problem in event.state.problems:
            self.desk.note("damage", problem)
        if event.state.rollbacks and self.params.durability == "merge" and not self.accepts_loss:
            self.desk.note("damage", "durability is `merge`, so nothing is started on a damaged store")
            return
        self.desk.commit(EpochRecord(event.state.epoch + 1, event.state.rollbacks))

    def _committed(self, event: ev.Committed) -> None:
        pending = self.desk.pending.get(event.ticket)
        if pending is None:
            return
        if not event.ok:
            self.desk.note("store", f"not committed: {event.reason}; will try again")
            key = f"commit:{event.ticket}"
            self.desk.out.append(do.SetTimer(key, event.at_ns + self.params.retry_ns))
            return
        del self.desk.pending[event.ticket]
        record = pending.record
        self.desk.state.apply(record)
        match record:
            case RoundRecord():
                self._round_committed(event.at_ns, record)
            case MemberRecord():
                self.admission.admitted(event.at_ns, record)
            case EpochRecord():
                self.is_active, self.admission.active_since_ns = True, event.at_ns
                self.desk.schedule.t = self.desk.state.t
                self._beat(event.at_ns)
            case SeedRecord():
                self.desk.out.append(do.Install(-1, 0, 0))
                self._refresh_all()
            case FinishRecord():
                self.desk.note("finished", record.reason)
                self._send_beats(event.at_ns)

    def _retry_commit(self, ticket: int) -> None:
        pending = self.desk.pending.get(ticket)
        if pending is not None:
            self.desk.out.append(do.Commit(ticket, pending.record, pending.sync))

    def _round_committed(self, now_ns: int, record: RoundRecord) -> None:
        self.rounds.committed(record, now_ns)
        self._advance(now_ns)
        merges = self.desk.state.merges
        if merges % self.params.snapshot_every == 0:
            self.desk.out.append(do.TakeSnapshot(merges))

    def _snapshot_taken(self, event: ev.SnapshotTaken) -> None:
        if not event.ok:
            self.desk.note("store", f"no snapshot: {event.reason}; the last one stays in force")

    # Timers

    def _timer(self, event: ev.TimerFired) -> None:
        verb, _, rest = event.key.partition(":")
        if verb == "commit":
            self._retry_commit(int(rest))
        elif self.is_active:
            match verb:
                case "beat":
                    self._beat(event.at_ns)
                case "round":
                    self.rounds.wake(int(rest), event.at_ns)
                    self._advance(event.at_ns)
                case "put":
                    self.rounds.retry_put(int(rest))

    def _beat(self, now_ns: int) -> None:
        """Everything that must happen even if no message comes."""
        self._send_beats(now_ns)
        for session in self.desk.sessions.values():
            is_lost = not session.is_connected(now_ns, self.params.alive_ns)
            if is_lost != session.lost and not session.left:
                session.lost = is_lost
                silent_s = (now_ns - min(session.heard_ns, session.echo_ns)) / 1e9
                reason = f"silent for {silent_s:.1f} s" if is_lost else "heard again"
                self.desk.note("lost" if is_lost else "back", reason, who=session.name)
        self.rounds.tend(now_ns)
        if not self.desk.state.fragments:
            self.seeding.ask(now_ns)
        self._advance(now_ns)
        self.desk.out.append(do.SetTimer("beat", now_ns + self.params.heartbeat_ns))

    def _send_beats(self, now_ns: int) -> None:
        desk, state = self.desk, self.desk.state
        final = tuple(fragment.version for fragment in state.fragments) if state.finished else ()
        t, tokens = desk.schedule.t, state.merged_tokens
        for session in desk.sessions.values():
            if not session.left:
                beat = msg.Beat(desk.epoch, session.incarnation, t, now_ns, tokens, state.finished, final)
                desk.send(session, beat)

    # Membership

    def _received(self, event: ev.Received) -> None:
        if not self.is_active:
            return
        message = event.message
        if isinstance(message, msg.Hello):
            self.admission.hello(event.at_ns, message)
            return
        if not is_well_formed(message, self.params.num_fragments):
            who = str(getattr(message, "name", ""))
            self.desk.note("malformed", f"{type(message).__name__} does not fit the run", who=who)
            return
        session = self._session_of(message)
        if session is not None:
            session.heard_ns = event.at_ns
            _FROM_LEARNER[type(message)](self, event.at_ns, session, message)

    def _session_of(self, message: Any) -> Session | None:
        """The session that a message belongs to; a stranger is asked who it is."""
        desk = self.desk
        member = desk.state.members.get(message.name)
        if member is not None and message.incarnation < member.incarnation:
            self.admission.send_fenced(message.name, message.incarnation)
            return None
        session = desk.sessions.get(message.name)
        if message.name in self.admission.joining:
            return None
        if session is None or not self.is_current(message, session):
            desk.out.append(do.Send(message.name, message.incarnation, msg.WhoIs(desk.epoch)))
            return None
        return session

    def is_current(self, message: Any, session: Session) -> bool:
        """Of this epoch and of the incarnation that holds the name."""
        return bool(message.epoch == self.desk.epoch and message.incarnation == session.incarnation)

    def _leave(self, now_ns: int, session: Session, message: msg.Leave) -> None:
        session.left = True
        self.desk.note("left", "said goodbye", who=session.name)
        self.rounds.tend(now_ns)
        self._advance(now_ns)

    # Reports, healing, the clock

    def _report(self, now_ns: int, session: Session, report: msg.Report) -> None:
        if report.sequence <= session.sequence:
            return
        session.take(report, now_ns)
        if not self.desk.state.fragments:
            return
        self.strikes.reported(session, now_ns)
        session.refresh(self.desk.state.fragments)
        self._serve(now_ns, session)
        self._advance(now_ns)

    def _serve(self, now_ns: int, session: Session) -> None:
        """Send what this learner lacks, what is due first foremost."""
        fragments = self.desk.state.fragments
        behind = []
        for p, (holding, fragment) in enumerate(zip(session.holdings, fragments, strict=True)):
            if holding.version == fragment.version and holding.digest == fragment.digest:
                sent = session.sent.pop(p, None)
                if sent is not None and sent.tries == 0:  # of a repeated one, nobody knows which arrived
                    session.transit.add(now_ns - sent.at_ns)
            else:
                behind.append(p)
        if not behind:
            return
        behind.sort(key=self.desk.schedule.next_due)
        in_flight = 0
        for p in behind:
            sent = session.sent.get(p)
            if sent is not None and sent.version == fragments[p].version:
                patience = session.patience_ns(sent.tries, self.params.retry_ns)
                if now_ns - sent.at_ns < patience:
                    in_flight += 1
                    continue
            if in_flight < HEAL_WINDOW:
                in_flight += 1
                self.rounds.publish(session, p, now_ns, NO_OFFER, as_update=False)

    def _want(self, now_ns: int, session: Session, message: msg.Want) -> None:
        """What arrived could not be used: the link works, so send the whole again, but not at its pace."""
        if not self.desk.state.fragments:
            return
        sent = session.sent.get(message.fragment)
        if sent is not None and sent.tries and now_ns - sent.at_ns < self.params.retry_ns:
            session.sent[message.fragment] = sent._replace(tries=0)
        else:
            self.rounds.publish(session, message.fragment, now_ns, NO_OFFER, as_update=False)

    def _advance(self, now_ns: int) -> None:
        """Move t, open what is due, drain when the budget is spent."""
        desk = self.desk
        if desk.state.finished:
            return
        if not desk.state.fragments:
            if self.drain_reason:
                self._finish()
            return
        self._tend_quarantine(now_ns)
        away = self.strikes.until_ns
        counted = [  # `may_offer` of each; the usual case without a call, as every report comes by here
            s for s in desk.connected(now_ns) if (s.healed and s.name not in away) or self.may_offer(s)
        ]
        self._note_quorum(len(counted))
        start = desk.schedule.t
        skipped = desk.schedule.advance({s.name: s.clock for s in counted})
        if desk.schedule.t > start:
            desk.out.append(do.Ticked(start, desk.schedule.t, skipped is not None))
        if self.drain_reason or self._budget_spent(now_ns):
            self._drain(now_ns, counted)
            return
        min_steps = 1 if self.params.waits else max(1, self.params.interval_steps // 2)
        if self.params.waits and counted and all(s.held_on >= 0 for s in counted):
            min_steps = 0
            self._call_for_held(counted)
        for p, due in list(desk.schedule.due.items()):
            if self.rounds.try_open(p, counted, min_steps, due, now_ns):
                del desk.schedule.due[p]

    def _call_for_held(self, counted: list[Session]) -> None:
        """Waiting algorithms: everybody waits, so t stands still; run the rounds they wait for.

        Learners out of step with each other may have nothing to offer there: then the round is
        cancelled, and the cancellation lets them go on. No round is called for whose result is on its way."""
        for session in counted:
            p, session.held_on = session.held_on, -1
            is_current = session.holdings[p].version == self.desk.state.fragments[p].version
            if is_current and p not in self.rounds.open:
                self.desk.schedule.due.setdefault(p, self.desk.schedule.t)

    def may_offer(self, session: Session) -> bool:
        """Only a healed learner is asked, and none in quarantine."""
        return session.healed and session.name not in self.strikes.until_ns

    def _tend_quarantine(self, now_ns: int) -> None:
        """Put in who has had enough strikes, let out whose time is over or whom the quorum needs."""
        strikes = self.strikes
        for name in list(strikes.due):
            strikes.quarantine(name, now_ns)
            self.rounds.fence(name, now_ns, "the learner was quarantined")
        if strikes.until_ns:
            healed = {s.name for s in self.desk.connected(now_ns) if s.healed}
            is_needed = len(healed - strikes.until_ns.keys()) < self.params.min_quorum <= len(healed)
            strikes.release(now_ns, is_needed)

    def _note_quorum(self, num_counted: int) -> None:
        reached = num_counted >= self.params.min_quorum
        if reached != self.has_quorum:
            self.has_quorum = reached
            count = f"{num_counted} of {self.params.min_quorum} healed learners connected"
            self.desk.note("quorum", count if reached else f"{count}: nothing is asked")

    def _refresh_all(self) -> None:
        for session in self.desk.sessions.values():
            session.refresh(self.desk.state.fragments)

    # The end

    def _budget_spent(self, now_ns: int) -> bool:
        params, desk = self.params, self.desk
        if self._awaits_return(now_ns):
            return False
        if params.budget_ticks and desk.schedule.t >= params.budget_ticks:
            self._begin_drain(now_ns, f"budget of {params.budget_ticks} ticks spent")
        elif params.budget_tokens:
            merged = desk.state.merged_tokens // params.num_fragments
            if merged >= params.budget_tokens:
                self._begin_drain(now_ns, f"budget of {params.budget_tokens} tokens spent")
        return bool(self.drain_reason)

    def _awaits_return(self, now_ns: int) -> bool:
        """Right after a boot, learners that trained on are still on their way: their progress must count."""
        if now_ns - self.admission.active_since_ns > self.params.alive_ns:
            return False
        back = {s.name for s in self.desk.sessions.values() if s.holdings or s.left}
        return not self.desk.state.members.keys() <= back

    def _begin_drain(self, now_ns: int, reason: str) -> None:
        self.drain_reason = reason
        self.drain_until_ns = now_ns + self.params.drain_ns
        self.desk.note("drain", reason)

    def _drain(self, now_ns: int, counted: list[Session]) -> None:
        """One last round per fragment; then, or at the deadline, the run is finished."""
        rounds = self.rounds
        if now_ns >= self.drain_until_ns:
            for rnd in [r for r in rounds.open.values() if not rounds.is_fixed(r)]:
                rounds.cancel(rnd, "the drain deadline has passed")
        else:
            for p in range(self.params.num_fragments):
                if p not in rounds.drained:
                    rounds.try_open(p, counted, 1, -1, now_ns)
        is_over = len(rounds.drained) == self.params.num_fragments or now_ns >= self.drain_until_ns
        if is_over and not rounds.open:
            self._finish()

    def _finish(self) -> None:
        if not self.is_finishing:
            self.is_finishing = True
            self.desk.commit(FinishRecord(self.desk.epoch, self.desk.schedule.t, self.drain_reason))

    def _finish_requested(self, event: ev.FinishRequested) -> None:
        if self.is_active and not self.drain_reason and not self.desk.state.finished:
            self._begin_drain(event.at_ns, event.reason)
            self._advance(event.at_ns)

    # Rounds, passed on

    def _header(self, now_ns: int, session: Session, header: msg.Header) -> None:
        if self.desk.state.fragments:
            self.rounds.header(session, header, now_ns)
            self._advance(now_ns)

    def _abstain(self, now_ns: int, session: Session, message: msg.Abstain) -> None:
        self.rounds.abstain(message, now_ns)
        self._advance(now_ns)

    def _body(self, now_ns: int, session: Session, body: msg.Body) -> None:
        self.rounds.body(session, body, now_ns)

    def _seed_body(self, now_ns: int, session: Session, body: msg.SeedBody) -> None:
        self.seeding.body(body)

    def _moments_ask(self, now_ns: int, session: Session, message: msg.MomentsAsk) -> None:
        self.donations.ask(session, message.fragment, now_ns)

    def _donation(self, now_ns: int, session: Session, message: msg.Donation) -> None:
        self.donations.donated(session, message, now_ns)

    def _restored(self, now_ns: int, session: Session, message: msg.Restored) -> None:
        if session.moments != message.source:
            session.moments = message.source
            self.desk.note("moments", f"{message.source}: {message.reason}", who=session.name)

    def _inspected(self, event: ev.Inspected) -> None:
        self.rounds.inspected(event)
        if self.strikes.due:
            self._tend_quarantine(event.at_ns)

    def _merged(self, event: ev.Merged) -> None:
        self.rounds.merged(event)

    def _delta_put(self, event: ev.DeltaPut) -> None:
        self.rounds.delta_put(event)


_HANDLERS: dict[type, Callable[[SyncerMachine, Any], None]] = {
    ev.Booted: SyncerMachine._booted,
    ev.Loaded: SyncerMachine._loaded,
    ev.Committed: SyncerMachine._committed,
    ev.SnapshotTaken: SyncerMachine._snapshot_taken,
    ev.TimerFired: SyncerMachine._timer,
    ev.Received: SyncerMachine._received,
    ev.Inspected: SyncerMachine._inspected,
    ev.Merged: SyncerMachine._merged,
    ev.DeltaPut: SyncerMachine._delta_put,
    ev.FinishRequested: SyncerMachine._finish_requested,
}

_FROM_LEARNER: dict[type, Callable[[SyncerMachine, int, Session, Any], None]] = {
    msg.Report: SyncerMachine._report,
    msg.Header: SyncerMachine._header,
    msg.Abstain: SyncerMachine._abstain,
    msg.Body: SyncerMachine._body,
    msg.SeedBody: SyncerMachine._seed_body,
    msg.Want: SyncerMachine._want,
    msg.MomentsAsk: SyncerMachine._moments_ask,
    msg.Donation: SyncerMachine._donation,
    msg.Restored: SyncerMachine._restored,
    msg.Leave: SyncerMachine._leave,
}
