"""The life of a round: ask, gather, close, bodies, inspect, merge, put, commit, publish.

One fragment has one round at a time; up to tau rounds gather at once. Each phase waits for one
kind of event and has a deadline; a round ends either in a commit or in a cancellation that leaves
every learner's progress as it was. A store that refuses to write delays the end, not the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.desk import Desk
from atoll.core.gates import NormGate, Refusal, screen
from atoll.core.grace import MovingAverage
from atoll.core.members import Sent, Session
from atoll.core.momentum import factor_at
from atoll.core.quorum import Cancel, Close, Gathering, judge
from atoll.core.records import Contributor, RoundRecord
from atoll.core.round import FIXED, NO_OFFER, Phase, Round
from atoll.core.strikes import Strikes
from atoll.core.waiting import grace_ns
from atoll.core.weights import capped, token_weight

__all__ = ["Rounds"]


@dataclass(slots=True)
class Rounds:
    """All open rounds, and what is remembered from past ones."""

    desk: Desk
    strikes: Strikes
    open: dict[int, Round] = field(default_factory=dict)
    ended: dict[int, int] = field(default_factory=dict)
    """Fragment -> number of its last round that ended in this epoch."""
    drained: set[int] = field(default_factory=set)
    """Fragments whose last round has ended."""
    gates: list[NormGate] = field(default_factory=list)
    quorum_ns: MovingAverage = field(init=False)
    """xi_quorum: from the ask to the K-th header."""
    merge_ns: MovingAverage = field(init=False)
    """xi_sync: from the close to the publish."""

    def __post_init__(self) -> None:
        params = self.desk.params
        self.quorum_ns = MovingAverage(params.averaging)
        self.merge_ns = MovingAverage(params.averaging)
        self.gates = [
            NormGate(params.norm_gate, params.on_large == "clip") for _ in range(params.num_fragments)
        ]

    # Opening

    def num_gathering(self) -> int:
        """Rounds that still wait for headers; at most tau."""
        return [rnd.phase for rnd in self.open.values()].count(Phase.GATHER)

    def try_open(self, p: int, counted: list[Session], min_steps: int, due: int, now_ns: int) -> bool:
        """Open a round on p if enough learners have worked on it."""
        desk, params = self.desk, self.desk.params
        if p in self.open or self.num_gathering() >= params.overlap_steps:
            return False
        ready = sum(1 for s in counted if s.holdings[p].steps >= min_steps and desk.may_offer(s, p))
        if ready < params.min_quorum:
            return False
        rnd = Round(
            self.ended.get(p, 0) + 1,
            p,
            now_ns,
            now_ns + desk.cycle_ns(counted),
            {s.name: s.incarnation for s in counted},
            due < 0,
        )
        self.open[p] = rnd
        num_live = len(desk.connected(now_ns))
        desk.out.append(do.Opened(p, rnd.number, desk.schedule.t, due, tuple(sorted(rnd.asked)), num_live))
        for session in counted:
            self._ask(rnd, session, now_ns)
        desk.out.append(do.SetTimer(f"round:{p}", rnd.deadline_ns))
        return True

    def _ask(self, rnd: Round, session: Session, now_ns: int, *, want_body: bool = False) -> None:
        desk = self.desk
        held = desk.state.contributions.get((session.name, rnd.fragment))
        rnd.asked_at_ns[session.name] = now_ns
        desk.send(
            session,
            msg.Ask(
                desk.epoch,
                session.incarnation,
                rnd.number,
                rnd.fragment,
                desk.schedule.t,
                desk.state.fragments[rnd.fragment].version,
                held.version if held else msg.NO_VERSION,
                want_body,
            ),
        )

    # Headers

    def header(self, session: Session, header: msg.Header, now_ns: int) -> None:
        """Count an offer, or refuse it."""
        desk, p = self.desk, header.fragment
        rnd = self.open.get(p)
        if rnd is None or rnd.number != header.round:
            if header.base_version == desk.state.fragments[p].version:
                reason = "the round had ended when the offer came"
                desk.send(session, msg.Cancelled(desk.epoch, session.incarnation, header.round, p, reason))
            return
        if header.name not in rnd.asked or header.name in rnd.headers or header.name in rnd.refused:
            return
        if rnd.phase is not Phase.GATHER:
            rnd.drop(header.name, Refusal("late", "the round had closed when the header came"))
            desk.note("dropped", "late: header after the close", fragment=p, who=header.name)
            return
        contribution = desk.state.contributions.get((header.name, p))
        refusal = screen(header, session, desk.state.fragments, contribution, desk.params)
        if refusal:
            rnd.drop(header.name, refusal)
            desk.note("dropped", f"{refusal.verdict}: {refusal.reason}", fragment=p, who=header.name)
            if refusal.verdict == "rejected":
                self.strikes.strike(header.name, refusal.reason)
        else:
            session.has_offered = True
            rnd.headers[header.name] = header
            rnd.offered_at_ns[header.name] = now_ns
        self.weigh(rnd, now_ns)

    def abstain(self, message: msg.Abstain, now_ns: int) -> None:
        """A learner has nothing to offer: do not wait for it."""
        rnd = self.open.get(message.fragment)
        if rnd and rnd.number == message.round and message.name not in rnd.headers:
            rnd.abstained.add(message.name)
            self.weigh(rnd, now_ns)

    def _missing(self, rnd: Round, now_ns: int) -> tuple[str, ...]:
        answered = rnd.headers.keys() | rnd.abstained | rnd.refused.keys()
        asked = rnd.asked.get
        missing = [
            s.name
            for s in self.desk.connected(now_ns)
            if s.name not in answered and asked(s.name) == s.incarnation
        ]
        return tuple(sorted(missing))

    def weigh(self, rnd: Round, now_ns: int) -> None:
        """Let the verdict decide whether a gathering round goes on."""
        if rnd.phase is not Phase.GATHER:
            return
        desk, params, missing = self.desk, self.desk.params, self._missing(rnd, now_ns)
        view = Gathering(
            rnd.fragment,
            rnd.deadline_ns,
            rnd.offered_at_ns,
            missing,
            params.min_quorum,
            grace_ns(rnd, missing, desk, self.quorum_ns, self.merge_ns, now_ns),
            params.waits,
        )
        verdict = judge(view, now_ns)
        if isinstance(verdict, Cancel):
            self.cancel(rnd, verdict.reason)
        elif isinstance(verdict, Close):
            self._close(rnd, verdict, now_ns)
        else:
            desk.out.append(do.SetTimer(f"round:{rnd.fragment}", verdict.wake_at_ns))

    def _close(self, rnd: Round, verdict: Close, now_ns: int) -> None:
        params = self.desk.params
        times = sorted(rnd.offered_at_ns.values())
        self.quorum_ns.add(times[params.min_quorum - 1] - rnd.opened_ns)
        rnd.phase, rnd.closed_ns = Phase.BODIES, now_ns
        self.desk.note("closed", verdict.reason, fragment=rnd.fragment)
        self.await_bodies(rnd, now_ns)

    # Bodies

    def body(self, session: Session, body: msg.Body, now_ns: int) -> None:
        """A body is here, whole: its content is held by the shell."""
        rnd = self.open.get(body.fragment)
        if rnd is None or rnd.number != body.round or rnd.phase in FIXED:
            return
        if body.name in rnd.refused or body.name in rnd.bodies or body.name not in rnd.asked:
            return
        rnd.bodies[body.name] = body.digest
        asked_ns = rnd.offered_at_ns.get(body.name)
        if asked_ns is not None and body.num_bytes:
            session.ns_per_byte.add((now_ns - asked_ns) / body.num_bytes)
        self.await_bodies(rnd, now_ns)

    def await_bodies(self, rnd: Round, now_ns: int) -> None:
        """Go on when all bodies are here, or their deadlines have passed."""
        if rnd.phase is not Phase.BODIES:
            return
        desk, params = self.desk, self.desk.params
        wake_ns = rnd.deadline_ns
        waiting = 0
        for name in sorted(rnd.headers):
            if name in rnd.bodies:
                continue
            deadline_ns = self._body_deadline_ns(rnd, name)
            if now_ns >= deadline_ns:
                self._learn_slowness(rnd, name, now_ns)
                rnd.drop(name, Refusal("late", "the body did not arrive in time"))
                desk.note("dropped", "late: no body in time", fragment=rnd.fragment, who=name)
            else:
                waiting += 1
                wake_ns = min(wake_ns, deadline_ns)
        if self.lacks_quorum(rnd):
            self.cancel(rnd, f"{len(rnd.headers)} of {params.min_quorum} offers left")
        elif waiting == 0:
            rnd.phase = Phase.INSPECT
            offers = tuple((name, rnd.headers[name].incarnation) for name in sorted(rnd.headers))
            desk.out.append(do.Inspect(rnd.fragment, rnd.number, offers))
        else:
            desk.out.append(do.SetTimer(f"round:{rnd.fragment}", wake_ns))

    def _body_deadline_ns(self, rnd: Round, name: str) -> int:
        """From the learner's measured bandwidth; at most until the fragment is due again."""
        session = self.desk.sessions.get(name)
        if session is None or session.ns_per_byte.num_samples == 0:
            return rnd.deadline_ns
        patience = session.body_patience_ns(self._offer_bytes(rnd), self.desk.params.retry_ns)
        return min(rnd.deadline_ns, max(rnd.closed_ns, rnd.offered_at_ns[name]) + patience)

    def _learn_slowness(self, rnd: Round, name: str, now_ns: int) -> None:
        """A missed deadline is a measurement too: without it a link that became slow would be

        given the old, short deadline for ever, and never be measured again."""
        session, num_bytes = self.desk.sessions.get(name), self._offer_bytes(rnd)
        if session is not None and num_bytes:
            session.ns_per_byte.add((now_ns - rnd.offered_at_ns[name]) / num_bytes)

    def _offer_bytes(self, rnd: Round) -> int:
        sizes = self.desk.params.fragment_bytes
        return sizes[rnd.fragment] if sizes else 0

    def lacks_quorum(self, rnd: Round) -> bool:
        """Whether too few offers are left to merge."""
        return len(rnd.headers) < self.desk.params.min_quorum

    # Merging

    def inspected(self, event: ev.Inspected) -> None:
        """Bodies were decoded once: gate them, then merge the rest in order of name."""
        rnd = self._at(event.fragment, event.round, Phase.INSPECT)
        if rnd is None:
            return
        gate = self.gates[rnd.fragment]
        gate.see([(result, rnd.headers[result.name].steps) for result in event.results])
        refused = []
        for result in event.results:
            refusal = gate.judge(result, rnd.headers[result.name].steps)
            if refusal:
                refused.append((result, refusal))
                rnd.drop(result.name, refusal)
                self.desk.note("dropped", refusal.reason, fragment=rnd.fragment, who=result.name)
        for result, refusal in refused:
            if rnd.headers or not result.finite:  # too large for all of them is a new world, no strike
                self.strikes.strike(result.name, refusal.reason, is_finite=result.finite)
        if not rnd.headers:
            self._nobody_passed(gate, event)
        if self.lacks_quorum(rnd):
            self.cancel(rnd, f"{len(rnd.headers)} of {self.desk.params.min_quorum} offers passed the gates")
            return
        scales = {}
        for result in event.results:
            if result.name in rnd.headers:
                scales[result.name] = self._clip(rnd, gate, result)
        rnd.phase = Phase.MERGE
        version = self.desk.state.fragments[rnd.fragment].version + 1
        parts = self._contributors(rnd, scales)
        rnd.momentum_factor = factor_at(self.desk.params, self.desk.schedule.t, self.desk.state.merged_tokens)
        self.desk.out.append(do.Merge(rnd.fragment, rnd.number, version, parts, rnd.momentum_factor))

    def _clip(self, rnd: Round, gate: NormGate, result: ev.Inspection) -> float:
        """By how much an offer is scaled down; from now on later ones are judged by it."""
        steps = rnd.headers[result.name].steps
        scale = gate.scale(result, steps)
        if scale < 1.0:
            reason = f"clipped: scaled by {scale:.3g} to {gate.factor:g} x the median norm"
            self.desk.note("clipped", reason, fragment=rnd.fragment, who=result.name)
        gate.passed(result, steps, scale)
        return scale

    def _nobody_passed(self, gate: NormGate, event: ev.Inspected) -> None:
        asked = [s for s in self.desk.connected(event.at_ns) if s.name not in self.strikes.until_ns]
        present = {s.name for s in asked if s.healed}
        if gate.nobody_passed(present):
            reason = "everybody's offers are far larger than those merged before: judged anew from here on"
            self.desk.note("gate", reason, fragment=event.fragment)

    def _contributors(self, rnd: Round, scales: dict[str, float]) -> tuple[Contributor, ...]:
        """In order of name, with weights of which none has more than its share."""
        headers = [rnd.headers[name] for name in sorted(rnd.headers)]
        weights = [token_weight(header.end - header.start, header.steps) for header in headers]
        return tuple(
            Contributor(
                h.name, h.incarnation, h.start, h.end, h.steps, h.base_version, weight, scales[h.name]
            )
            for h, weight in zip(headers, capped(weights, self.desk.params.max_share), strict=True)
        )

    def merged(self, event: ev.Merged) -> None:
        """The outer step was taken aside; store its delta."""
        rnd = self._at(event.fragment, event.round, Phase.MERGE)
        if rnd is None:
            return
        if not event.finite:
            self.cancel(rnd, "the merged fragment is not finite")
            return
        rnd.phase, rnd.merged = Phase.PUT, event
        self._put(rnd)

    def _put(self, rnd: Round) -> None:
        assert rnd.merged is not None
        self.desk.out.append(do.PutDelta(rnd.fragment, rnd.number, rnd.merged.delta_digest, self._sync_now()))

    def _sync_now(self) -> bool:
        """Whether this commit must reach the disk before anybody hears of it."""
        params = self.desk.params
        if params.durability == "cycle":
            return (self.desk.state.merges + 1) % params.num_fragments == 0
        return params.durability == "merge"

    def delta_put(self, event: ev.DeltaPut) -> None:
        """The delta is a file: commit the round, or try again when the disk refused."""
        rnd = self._at(event.fragment, event.round, Phase.PUT)
        if rnd is None:
            return
        if not event.ok:
            self.desk.note("store", f"not committed: {event.reason}; will try again", fragment=rnd.fragment)
            self.desk.out.append(do.SetTimer(f"put:{rnd.fragment}", event.at_ns + self.desk.params.retry_ns))
            return
        assert rnd.merged is not None
        rnd.phase = Phase.COMMIT
        desk = self.desk
        record = RoundRecord(
            desk.epoch,
            rnd.number,
            rnd.fragment,
            desk.state.fragments[rnd.fragment].version + 1,
            rnd.merged.digest,
            rnd.merged.delta_digest,
            desk.schedule.t,
            rnd.merged.contributors,
            rnd.momentum_factor,
        )
        desk.commit(record, sync=self._sync_now())

    def retry_put(self, p: int) -> None:
        """The timer of a refused write."""
        rnd = self.open.get(p)
        if rnd and rnd.phase is Phase.PUT:
            self._put(rnd)

    # Ends

    def committed(self, record: RoundRecord, now_ns: int) -> None:
        """The commit point has passed (and `state` holds it): install and publish."""
        desk = self.desk
        rnd = self._end(record.fragment)
        self.merge_ns.add(now_ns - rnd.closed_ns)
        desk.out.append(do.Install(record.fragment, rnd.number, record.version))
        names = {part.name for part in record.contributors}
        for part in record.contributors:
            self.strikes.forgive(part.name)
        for session in desk.sessions.values():
            session.refresh(desk.state.fragments)
            if not session.left:
                verdict = self._verdict(rnd, session, names)
                self.publish(session, record.fragment, now_ns, verdict, as_update=True)
        desk.out.append(do.Discard(record.fragment, rnd.number))

    def _verdict(self, rnd: Round, session: Session, merged: set[str]) -> Refusal:
        if rnd.asked.get(session.name) != session.incarnation:
            return NO_OFFER
        if session.name in merged:
            return Refusal("merged", "")
        return rnd.refused.get(session.name, NO_OFFER)

    def publish(self, session: Session, p: int, now_ns: int, verdict: Refusal, *, as_update: bool) -> None:
        """Send the current version: as an update if the learner holds the one before."""
        desk, params = self.desk, self.desk.params
        fragment = desk.state.fragments[p]
        old = session.sent.get(p)
        on_its_way = old.version if old else msg.NO_VERSION
        held = session.holdings[p].version if session.holdings else msg.NO_VERSION
        as_update = as_update and fragment.version - 1 in (held, on_its_way)
        tries = old.tries + 1 if old and old.version == fragment.version else 0
        session.sent[p] = Sent(fragment.version, now_ns, tries)
        contribution = desk.state.contributions.get((session.name, p))
        sizes = params.publish_bytes if as_update else params.full_bytes
        desk.send(
            session,
            msg.Publish(
                desk.epoch,
                session.incarnation,
                p,
                self.ended.get(p, 0),
                fragment.version,
                fragment.digest,
                fragment.version - 1 if as_update else msg.FULL,
                fragment.previous_digest if as_update else "",
                verdict.verdict,
                verdict.reason,
                contribution.upto if contribution else 0,
                sizes[p] if sizes else 0,
            ),
        )

    def cancel(self, rnd: Round, reason: str) -> None:
        """End a round without a merge; everybody who may wait for it is told."""
        desk = self.desk
        self._end(rnd.fragment)
        desk.note("cancelled", reason, fragment=rnd.fragment)
        for name, incarnation in rnd.asked.items():
            session = desk.sessions.get(name)
            if session and session.incarnation == incarnation and not session.left:
                own = rnd.refused.get(name)
                why = f"{reason}; this offer was {own.verdict}: {own.reason}" if own else reason
                desk.send(session, msg.Cancelled(desk.epoch, incarnation, rnd.number, rnd.fragment, why))
        desk.out.append(do.Discard(rnd.fragment, rnd.number))

    def _end(self, p: int) -> Round:
        rnd = self.open.pop(p)
        rnd.phase = Phase.ENDED
        self.ended[p] = rnd.number
        if rnd.is_drain:
            self.drained.add(p)
        return rnd

    # Upkeep

    def tend(self, now_ns: int) -> None:
        """At every beat: ask the silent again, notice the dead, keep deadlines."""
        for rnd in list(self.open.values()):
            if rnd.phase is Phase.GATHER:
                for name in self._missing(rnd, now_ns):
                    self._ask_again(rnd, name, now_ns, want_body=False)
                self.weigh(rnd, now_ns)
            elif rnd.phase is Phase.BODIES:
                for name in sorted(rnd.headers.keys() - rnd.bodies.keys()):
                    self._ask_again(rnd, name, now_ns, want_body=True)
                self.await_bodies(rnd, now_ns)

    def _ask_again(self, rnd: Round, name: str, now_ns: int, *, want_body: bool) -> None:
        session = self.desk.sessions.get(name)
        if session is None or session.incarnation != rnd.asked[name] or session.left:
            return
        patience = self.desk.params.retry_ns
        if want_body and session.ns_per_byte.num_samples:
            patience = session.body_patience_ns(self._offer_bytes(rnd), patience) // 2
        elif want_body:
            patience *= 2
        else:
            patience += 2 * session.step_ns
        if now_ns - max(rnd.asked_at_ns[name], rnd.offered_at_ns.get(name, 0)) >= patience:
            self._ask(rnd, session, now_ns, want_body=want_body)

    def wake(self, p: int, now_ns: int) -> None:
        """The timer of a round."""
        rnd = self.open.get(p)
        if rnd is not None:
            self.weigh(rnd, now_ns)
            self.await_bodies(rnd, now_ns)

    def is_past_recall(self, name: str) -> bool:
        """Whether an offer of this learner is in a merge that can no longer change."""
        return any(rnd.phase in FIXED and name in rnd.headers for rnd in self.open.values())

    def is_fixed(self, rnd: Round) -> bool:
        """Whether a round has its contributors and can only go on to its end."""
        return rnd.phase in FIXED

    def fence(self, name: str, now_ns: int, reason: str) -> None:
        """Take the offers of a learner out of every round that has not merged."""
        for rnd in list(self.open.values()):
            if rnd.phase not in FIXED and name in rnd.asked:
                refusal = Refusal("rejected", reason)
                rnd.drop(name, refusal)
                self.desk.note("dropped", f"rejected: {refusal.reason}", fragment=rnd.fragment, who=name)
                self.wake(rnd.fragment, now_ns)

    def _at(self, p: int, number: int, phase: Phase) -> Round | None:
        rnd = self.open.get(p)
        return rnd if rnd and rnd.number == number and rnd.phase is phase else None
