"""How learners come in: hello, the admission that is durable first, the welcome.

A life that is known is taken up again. A new life of a name gets the next incarnation, and the one before is
fenced; with another key it is refused as long as the name is alive. While an offer of the old life is past
recall the new one waits: its hello is repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from atoll.core import commands as do
from atoll.core import messages as msg
from atoll.core.desk import Desk
from atoll.core.members import NAME, Session
from atoll.core.records import MemberRecord, StoredMember
from atoll.core.rounds import Rounds
from atoll.core.seeding import Seeding
from atoll.core.shards import shard_for

__all__ = ["Admission"]


@dataclass(slots=True)
class Admission:
    """The door of the machine. `desk.sessions` holds who is in."""

    desk: Desk
    rounds: Rounds
    seeding: Seeding
    joining: dict[str, msg.Hello] = field(default_factory=dict)
    """Admissions on their way into the store."""
    active_since_ns: int = 0

    def hello(self, now_ns: int, hello: msg.Hello) -> None:
        """Admit a new life, or take a known one up again."""
        if not NAME.fullmatch(hello.name):
            self._refuse(hello, f"the name {hello.name!r} does not match {NAME.pattern}")
            return
        if hello.name in self.joining:
            return
        member = self.desk.state.members.get(hello.name)
        if member is None:
            if hello.incarnation:
                self._refuse(hello, "this run never admitted you; start again as a new learner")
            else:
                self._admit(now_ns, hello, 1)
        elif hello.life == member.lives[-1] and hello.key == member.key:
            self.attach(now_ns, hello, member.incarnation, member.shard)
        elif hello.key != member.key and self._may_be_alive(hello.name, now_ns):
            self._refuse(hello, f"the name {hello.name} is in use by a live learner with another key")
        elif hello.incarnation or hello.life in member.lives:
            self.send_fenced(hello.name, hello.incarnation)
        else:
            self._admit(now_ns, hello, member.incarnation + 1)

    def admitted(self, now_ns: int, record: MemberRecord) -> None:
        """The admission is durable: say so."""
        hello = self.joining.pop(record.name)
        self.desk.note("admitted", f"incarnation {record.incarnation}", who=record.name)
        self.attach(now_ns, hello, record.incarnation, record.shard)
        if record.incarnation > 1:
            self.send_fenced(record.name, record.incarnation - 1)

    def send_fenced(self, name: str, incarnation: int) -> None:
        """Tell an older life that it is over."""
        reason = f"a newer incarnation of {name} was admitted; this one must stop offering"
        self.desk.out.append(do.Send(name, incarnation, msg.Fenced(self.desk.epoch, incarnation, reason)))

    def attach(self, now_ns: int, hello: msg.Hello, incarnation: int, shard: int) -> None:
        """Welcome a life, also for the second time."""
        desk = self.desk
        session = desk.sessions.get(hello.name)
        if session is None or session.incarnation != incarnation:
            session = Session(hello.name, incarnation, now_ns, now_ns, desk.params.averaging)
            desk.sessions[hello.name] = session
            desk.schedule.shifts.pop(hello.name, None)
        session.heard_ns = now_ns
        session.sent.clear()  # a connection was made anew: what was on its way is gone
        t, state = desk.schedule.t, desk.state
        desk.send(
            session,
            msg.Welcome(desk.epoch, hello.life, incarnation, t, shard, state.finished, state.rewound),
        )
        if not state.fragments:
            self.seeding.ask(now_ns)

    def _may_be_alive(self, name: str, now_ns: int) -> bool:
        """Connected; or, right after a boot, not yet given the time to come back."""
        session = self.desk.sessions.get(name)
        if session is None:
            return now_ns - self.active_since_ns <= self.desk.params.alive_ns
        return session.is_connected(now_ns, self.desk.params.alive_ns)

    def _refuse(self, hello: msg.Hello, reason: str) -> None:
        self.desk.note("refused", reason, who=hello.name)
        refused = msg.Refused(self.desk.epoch, hello.life, reason)
        self.desk.out.append(do.Send(hello.name, hello.incarnation, refused))

    def _admit(self, now_ns: int, hello: msg.Hello, incarnation: int) -> None:
        if self.rounds.is_past_recall(hello.name):
            return
        self.rounds.fence(hello.name, now_ns, "a newer incarnation was admitted")
        self.desk.sessions.pop(hello.name, None)
        self.joining[hello.name] = hello
        shard = self._shard(hello.name, now_ns)
        record = MemberRecord(self.desk.epoch, hello.name, hello.key, hello.life, incarnation, shard)
        self.desk.commit(record)

    def _shard(self, name: str, now_ns: int) -> int:
        """Counting those in whose admission is not durable yet."""
        desk = self.desk
        members = dict(desk.state.members)
        for pending in desk.pending.values():
            if isinstance(pending.record, MemberRecord):
                r = pending.record
                members[r.name] = StoredMember(r.name, r.key, r.incarnation, r.shard, (r.life,))

        def is_present(other: str) -> bool:
            session = desk.sessions.get(other)
            heard_ns = session.heard_ns if session is not None else self.active_since_ns
            return other in self.joining or now_ns - heard_ns <= desk.params.hand_on_ns

        return shard_for(name, members, desk.params.num_shards, is_present)
