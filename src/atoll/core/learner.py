"""The learner machine: trains at its own pace, offers when asked, adopts at step boundaries.

Life of a learner: it says hello until it is welcomed, receives every fragment once, and is then
healed. Between boundaries it only takes notes: an ask is remembered, a publish is staged. At a
boundary (`Stepped`) it first answers asks with a snapshot, so that progress that an adoption
would overwrite is offered, then adopts what is staged, then reports. Cut off, it trains on.

Its account of tokens (`account`) is exact: on every fragment, each token of an incarnation gets one
fate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.account import Offer, Slot, fate_of
from atoll.core.borrowing import Borrowing, Self
from atoll.core.params import RunParams

__all__ = ["LearnerMachine"]


@dataclass(slots=True)
class LearnerMachine:
    """Events in, commands out. See the module for how it works."""

    params: RunParams
    name: str = ""
    key: str = ""
    life: int = 0
    incarnation: int = 0
    epoch: int = 0
    state: str = "new"
    """new, joining, joined, fenced, refused, left."""
    clock: int = 0
    global_t: int = 0
    tokens: int = 0
    steps: int = 0
    finished: bool = False
    final: tuple[int, ...] | None = None
    """The last version of every fragment, once the syncer has said which they are."""
    slots: list[Slot] = field(default_factory=list)
    heard_ns: int = 0
    reported_ns: int = 0
    echo_ns: int = 0
    step_ns: int = 0
    held_ns: int = 0
    held_on: int = -1
    hold_until_ns: int = 0
    num_reports: int = 0
    seed: tuple[msg.SeedBody, ...] = ()
    shard: int = -1
    is_tainted: bool = False
    """Quarantined, and not yet sent every fragment again."""
    borrowing: Borrowing = field(default_factory=Borrowing)
    restored: tuple[str, str] = ("", "")
    """Where the optimizer state of this life came from, and why there."""
    out: list[do.Command] = field(default_factory=list)

    def handle(self, event: ev.Event) -> list[do.Command]:
        """Take in one event; returns the commands to perform, in order."""
        self.out = []
        if self.state not in ("fenced", "refused", "left"):
            _HANDLERS[type(event)](self, event)
        return self.out

    # Beginning and connection

    def _started(self, event: ev.Started) -> None:
        self.name, self.key, self.life = event.name, event.key, event.life
        self.slots = [Slot() for _ in range(self.params.num_fragments)]
        self.state = "joining"
        self._hello(event.at_ns)

    def _hello(self, now_ns: int) -> None:
        self._tell(msg.Hello(self.name, self.key, self.life, self.incarnation, self.epoch))
        self.out.append(do.SetTimer("pulse", now_ns + self.params.retry_ns))

    def _timer(self, event: ev.TimerFired) -> None:
        """The pulse: says hello again when cut off, else reports if no step did."""
        now = event.at_ns
        if self.held_on >= 0 and (self._cut_off(now) or now >= self.hold_until_ns):
            self._release("the syncer is silent" if self._cut_off(now) else "waited too long")
        if self.state == "joining" or self._cut_off(now):
            self._hello(now)
            return
        if now - self.reported_ns >= self.params.heartbeat_ns:
            self._report(now)
        self._borrow(now)
        self.out.append(do.SetTimer("pulse", now + self.params.heartbeat_ns))

    def _cut_off(self, now_ns: int) -> bool:
        return now_ns - self.heard_ns > self.params.alive_ns

    def _leave(self, event: ev.LeaveRequested) -> None:
        if self.incarnation:
            self._tell(msg.Leave(*self._me()))
        self._release("leaving")
        self.state = "left"

    def _received(self, event: ev.Received) -> None:
        message = event.message
        if isinstance(message, msg.Welcome):
            self._welcome(event.at_ns, message)
        elif isinstance(message, msg.Refused):
            if self.state == "joining" and message.life == self.life and not self.incarnation:
                self.state = "refused"
                self.out.append(do.Note("refused", -1, self.name, message.reason))
        elif isinstance(message, msg.Fenced):
            if message.epoch >= self.epoch and message.incarnation == self.incarnation:
                self._fenced(message)
        elif isinstance(message, msg.WhoIs):
            if message.epoch >= self.epoch and self.state == "joined":
                self._hello(event.at_ns)
        elif self._is_for_me(message):
            self.heard_ns = event.at_ns
            _FROM_SYNCER[type(message)](self, event.at_ns, message)

    def _is_for_me(self, message: Any) -> bool:
        """Of this epoch and this incarnation: what an older syncer said is refused."""
        return (
            self.state == "joined" and message.epoch == self.epoch and message.incarnation == self.incarnation
        )

    def _welcome(self, now_ns: int, message: msg.Welcome) -> None:
        if message.life != self.life or message.epoch < self.epoch:
            return
        if self.state == "joining":
            self.state, self.incarnation = "joined", message.incarnation
            self.clock, self.shard = message.t, message.shard
            self.out.append(do.SetTimer("pulse", now_ns + self.params.heartbeat_ns))
        elif message.incarnation != self.incarnation:
            return
        self.heard_ns = now_ns
        if self.epoch < message.rewound:
            self.clock = self.global_t = message.t
            self.finished, self.final = False, None
        if message.epoch > self.epoch:
            self.epoch, self.echo_ns = message.epoch, 0
            self._forget_staged()
        self.global_t = max(self.global_t, message.t)
        if message.finished:
            self._finish(message.t)
        self._tell_restored()
        self._report(now_ns)

    def _forget_staged(self) -> None:
        """What an earlier life of the syncer published may not be history any more."""
        for p, slot in enumerate(self.slots):
            if slot.staged is not None:
                self.out.append(do.Unstage(p))
            slot.staging = slot.staged = None

    def _fenced(self, message: msg.Fenced) -> None:
        self._release("fenced")
        self.state = "fenced"
        self.out.append(do.Note("fenced", -1, self.name, message.reason))

    def _beat(self, now_ns: int, message: msg.Beat) -> None:
        self.echo_ns = max(self.echo_ns, message.sent_ns)
        self.global_t = max(self.global_t, message.t)
        if message.finished:
            self.final = message.final
            self._finish(message.t)

    def is_complete(self, now_ns: int) -> bool:
        """Whether the run is over and its last versions are held, or nobody is there to send them."""
        if not self.finished or self._cut_off(now_ns):
            return self.finished
        final = self.final
        return final is not None and all(
            slot.version >= last for slot, last in zip(self.slots, final, strict=False)
        )

    def _finish(self, t: int) -> None:
        """The run is over: stop offering, once and for all."""
        if not self.finished:
            self.finished = True
            self._release("the run has finished")
            self.out.append(do.Note("finished", -1, self.name, f"budget spent at tick {t}"))

    # Seeding

    def _seed_ask(self, now_ns: int, message: msg.SeedAsk) -> None:
        """Only a learner without any base may seed; asked again, it sends the same seed."""
        held = [(slot.version, slot.digest) for slot in self.slots]
        if all(version < 0 for version, _ in held):
            self.out.append(do.SeedSnapshot(message.epoch))
        elif self.seed and held == [(0, body.digest) for body in self.seed]:
            self.seed = tuple(replace(body, epoch=self.epoch) for body in self.seed)
            self.out.extend(do.Resend(self.seed[p]) for p in message.missing)

    def _seed_ready(self, event: ev.SeedReady) -> None:
        """The copy becomes this learner's own base; whether it is the run's, digests will tell."""
        if event.epoch != self.epoch or any(slot.version >= 0 for slot in self.slots):
            return
        if not event.finite:
            self.out.append(do.Note("seed", -1, self.name, "initial weights not finite: cannot seed"))
            return
        for p, slot in enumerate(self.slots):
            slot.version, slot.digest = 0, event.digests[p]
            self.out += slot.restart(p, self.tokens, self.steps, None)
        self.seed = tuple(
            msg.SeedBody(*self._me(), p, digest, num_bytes)
            for p, (digest, num_bytes) in enumerate(zip(event.digests, event.num_bytes, strict=True))
        )
        for body in self.seed:
            self._tell(body)

    # Optimizer state

    def _moments_restored(self, event: ev.MomentsRestored) -> None:
        self.restored = (event.source, event.reason)
        self.out.append(do.Note("moments", -1, self.name, f"{event.source}: {event.reason}"))
        self._tell_restored()

    def _tell_restored(self) -> None:
        if self.restored[0] and self.state == "joined":
            self._tell(msg.Restored(*self._me(), *self.restored))

    def _moments_wanted(self, event: ev.MomentsWanted) -> None:
        self.borrowing.missing = list(event.missing)
        self._borrow(event.at_ns)

    def _borrow(self, now_ns: int) -> None:
        if self.state == "joined":
            self.out += self.borrowing.ask(self._me(), now_ns, self.params.retry_ns)

    def _moments(self, now_ns: int, message: msg.Moments) -> None:
        self.out += self.borrowing.received(message)
        self._borrow(now_ns)

    def _no_moments(self, now_ns: int, message: msg.NoMoments) -> None:
        self.out += self.borrowing.give_up(message.reason)

    def _donate_ask(self, now_ns: int, message: msg.DonateAsk) -> None:
        if not self.is_tainted and all(slot.version >= 0 for slot in self.slots):
            self.borrowing.promise(message)

    def _moments_copied(self, event: ev.MomentsCopied) -> None:
        self.out += self.borrowing.copied(self._me(), event)

    # Quarantine

    def _quarantined(self, now_ns: int, message: msg.Quarantined) -> None:
        """If nothing that is held here is to be built upon, every base is forgotten, so that all are sent
        again, whole. A pending offer keeps its fate, which the next publish tells."""
        self.out.append(do.Note("quarantined", -1, self.name, message.reason))
        if not message.heals:
            return
        self.out.append(do.ResetMoments(message.reason))
        self._forget_staged()
        self.borrowing.withdraw()
        self.is_tainted = True
        for slot in self.slots:
            slot.version, slot.digest, slot.epoch, slot.ask = msg.NO_VERSION, "", 0, None
        self._release("quarantined")
        self._report(now_ns)

    def _begin_anew(self) -> None:
        """Every fragment was sent again. What was trained on the first of them beside the rest of a spoiled
        model is given up: at this boundary the shell takes all of them back to their bases."""
        self.is_tainted = False
        for p, slot in enumerate(self.slots):
            self.out += slot.restart(p, self.tokens, self.steps, None)

    # Rounds

    def _ask(self, now_ns: int, ask: msg.Ask) -> None:
        slot = self.slots[ask.fragment]
        self.global_t = max(self.global_t, ask.t)
        offer = slot.offer
        if offer and (offer.epoch, offer.round) == (ask.epoch, ask.round):
            self._repeat(offer, ask)
        elif slot.abstained and (ask.epoch, ask.round) == slot.answered:
            self._tell(slot.abstained)
        elif (ask.epoch, ask.round) > slot.answered and (
            slot.ask is None or (ask.epoch, ask.round) > (slot.ask.epoch, slot.ask.round)
        ):
            slot.ask = ask
            if self.held_on >= 0:
                self._answer(ask.fragment, slot)

    def _repeat(self, offer: Offer, ask: msg.Ask) -> None:
        if not ask.want_body:
            self._tell(offer.header)
        if offer.body is not None:
            self.out.append(do.Resend(offer.body))

    def _answer(self, p: int, slot: Slot) -> None:
        """At a boundary: offer the open interval, or say why not."""
        ask = slot.ask
        assert ask is not None
        slot.ask = None
        if ask.epoch != self.epoch:
            return
        slot.answered, slot.abstained = (ask.epoch, ask.round), None
        reason = self._why_not(slot, ask)
        if slot.offer is not None and not reason:
            self._dissolve(p, slot)
        if not reason and self.steps == slot.origin_steps:
            reason = "no step on this fragment since it was adopted"
        if reason:
            slot.abstained = msg.Abstain(*self._me(), ask.round, p, reason)
            self._tell(slot.abstained)
            return
        base, interval = (slot.version, slot.digest), (slot.origin, self.tokens)
        steps, bases = self.steps - slot.origin_steps, tuple([s.version for s in self.slots])
        header = msg.Header(*self._me(), ask.round, p, *base, *interval, steps, bases)
        slot.offer = Offer(ask.epoch, ask.round, header, slot.origin, self.tokens, self.steps)
        self.out.append(do.Snapshot(p, ask.epoch, ask.round))
        self._tell(header)
        self.out.append(do.Encode(p, ask.epoch, ask.round))

    def _why_not(self, slot: Slot, ask: msg.Ask) -> str:
        if self.finished:
            return "the run has finished"
        if slot.version < 0:
            return "not healed: no base"
        if ask.contributed > slot.version:
            return f"my last offer is in version {ask.contributed}, I hold {slot.version}"
        if ask.version - slot.version > 1 or slot.version > ask.version:
            return f"my base {slot.version} is not the current {ask.version} or the one before"
        return ""

    def _dissolve(self, p: int, slot: Slot) -> None:
        """The round of the pending offer ended without it: its interval is open again, or,

        if a version was adopted over it meanwhile, it is gone."""
        offer = slot.offer
        assert offer is not None
        if offer.start < slot.origin:
            self.out += slot.settle(p, offer.start, offer.end, "cancelled")
        self.out.append(do.Drop(p, False))
        slot.offer = None

    def _encoded(self, event: ev.Encoded) -> None:
        offer = self.slots[event.fragment].offer
        if offer is None or (offer.epoch, offer.round) != (event.epoch, event.round):
            return
        whose = (self.name, self.incarnation, offer.epoch, offer.round)
        offer.body = msg.Body(*whose, event.fragment, event.digest, event.num_bytes)
        if offer.epoch == self.epoch:
            self._tell(offer.body)

    def _cancelled(self, now_ns: int, message: msg.Cancelled) -> None:
        slot = self.slots[message.fragment]
        offer = slot.offer
        if offer and (offer.epoch, offer.round) == (message.epoch, message.round):
            self._dissolve(message.fragment, slot)
        if slot.ask and slot.ask.epoch == message.epoch and slot.ask.round <= message.round:
            slot.ask = None
        if self.held_on == message.fragment:
            self._release(f"round cancelled: {message.reason}")

    # Publishes

    def _publish(self, now_ns: int, publish: msg.Publish) -> None:
        p = publish.fragment
        slot = self.slots[p]
        if not self._is_news(slot, publish):
            return
        newest = slot.staged or slot
        base = (publish.base_version, publish.base_digest)
        if publish.base_version != msg.FULL and base != (newest.version, newest.digest):
            self._tell(msg.Want(*self._me(), p))
            return
        if slot.staging is not None and slot.staging.version >= publish.version:
            return
        slot.staging = publish
        self.out.append(do.Stage(publish))

    def _is_news(self, slot: Slot, publish: msg.Publish) -> bool:
        """A later version; or, from a later life of the syncer, another history."""
        newest = slot.staged or slot
        if publish.epoch > newest.epoch:
            return (publish.version, publish.digest) != (newest.version, newest.digest)
        return publish.version > newest.version

    def _staged(self, event: ev.Staged) -> None:
        slot = self.slots[event.fragment]
        publish = slot.staging
        if publish is None or (publish.version, publish.digest) != (event.version, event.digest):
            return
        slot.staging = None
        if not event.ok:
            self._tell(msg.Want(*self._me(), event.fragment))
            return
        slot.staged = publish
        if self.held_on >= 0:
            self._adopt(event.fragment, slot)

    def _adopt(self, p: int, slot: Slot) -> None:
        """At a boundary: take the staged version in, and settle the account."""
        publish = slot.staged
        assert publish is not None
        slot.staged = None
        fate = fate_of(slot.offer, publish)
        merged, unresolved = fate == "merged", slot.offer is not None and fate is None
        reset = fate == "rejected" or slot.version < 0
        self.out.append(do.Adopt(p, publish.version, publish.digest, merged, unresolved, reset))
        if self.params.adopt == "rebase" and not reset:
            self.out += slot.keep_progress(p, fate)
        else:
            self.out += slot.restart(p, self.tokens, self.steps, fate)
        if slot.offer is not None and fate is not None:
            self.out.append(do.Drop(p, merged))
            slot.offer = None
        slot.version, slot.digest, slot.epoch = publish.version, publish.digest, publish.epoch
        if self.held_on == p:
            self._release(f"adopted version {publish.version}")

    # Boundary

    def _stepped(self, event: ev.Stepped) -> None:
        self.tokens += event.tokens
        self.steps += event.steps
        self.clock += event.steps
        self.step_ns = event.step_ns
        self.held_ns = event.held_ns
        if self.state != "joined":
            return
        for p, slot in enumerate(self.slots):
            if slot.ask is not None:
                self._answer(p, slot)
            if slot.staged is not None:
                self._adopt(p, slot)
        if self.is_tainted and all(slot.version >= 0 for slot in self.slots):
            self._begin_anew()
        self.out += self.borrowing.boundary()
        if self.params.waits and not self.finished:
            self._maybe_hold(event.at_ns)
        self._report(event.at_ns)

    def _maybe_hold(self, now_ns: int) -> None:
        """Waiting algorithms: stop an interval after a fragment was taken in; DiLoCo also from its offer to
        the adoption of what becomes of it, so that nothing is trained in between.

        Neither goes by the clock, which the syncer shifts on its side alone when newcomers count."""
        for p, slot in enumerate(self.slots):
            fresh = self.steps - slot.origin_steps
            is_offered = self.params.algorithm == "diloco" and slot.offer is not None
            is_due = is_offered or fresh >= self.params.hold_steps
            if is_due and slot.version >= 0 and fresh > 0 and not self._cut_off(now_ns):
                self.held_on = p
                self.hold_until_ns = now_ns + self.params.live_ns
                self.out.append(do.Hold(p, f"waiting for fragment {p}"))
                return

    def _release(self, reason: str) -> None:
        if self.held_on >= 0:
            self.held_on = -1
            self.out.append(do.Release(reason))

    def _report(self, now_ns: int) -> None:
        self.reported_ns = now_ns
        self.num_reports += 1
        counts = (self.num_reports, self.clock, self.tokens)
        held = (self.step_ns, self.held_ns, self.held_on)
        holdings = tuple([slot.holding(self.steps) for slot in self.slots])
        self._tell(msg.Report(*self._me(), *counts, *held, self.echo_ns, holdings))

    def _me(self) -> Self:
        return Self(self.name, self.incarnation, self.epoch)

    def _tell(self, message: msg.FromLearner) -> None:
        self.out.append(do.Tell(message))


_HANDLERS: dict[type, Callable[[LearnerMachine, Any], None]] = {
    ev.Started: LearnerMachine._started,
    ev.Stepped: LearnerMachine._stepped,
    ev.Received: LearnerMachine._received,
    ev.Encoded: LearnerMachine._encoded,
    ev.Staged: LearnerMachine._staged,
    ev.SeedReady: LearnerMachine._seed_ready,
    ev.TimerFired: LearnerMachine._timer,
    ev.LeaveRequested: LearnerMachine._leave,
    ev.MomentsWanted: LearnerMachine._moments_wanted,
    ev.MomentsCopied: LearnerMachine._moments_copied,
    ev.MomentsRestored: LearnerMachine._moments_restored,
}

_FROM_SYNCER: dict[type, Callable[[LearnerMachine, int, Any], None]] = {
    msg.Beat: LearnerMachine._beat,
    msg.SeedAsk: LearnerMachine._seed_ask,
    msg.Ask: LearnerMachine._ask,
    msg.Publish: LearnerMachine._publish,
    msg.Cancelled: LearnerMachine._cancelled,
    msg.DonateAsk: LearnerMachine._donate_ask,
    msg.Moments: LearnerMachine._moments,
    msg.NoMoments: LearnerMachine._no_moments,
    msg.Quarantined: LearnerMachine._quarantined,
}
