"""The optimizer state of a simulated learner: a token per fragment, which tells whose it is.

A life that comes back has its own state, or wants a peer's. What a peer gives is a token that says who packed
it and whether its giver was sound at that moment, and it is looked at when it is taken: the machines must not
let any other through. After a quarantine the model goes back to its bases at the boundary at which the last
fragment is in, as in the runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core.params import MS
from atoll.sim.ghost import hash_of

if TYPE_CHECKING:
    from atoll.sim.process import LearnerProcess

__all__ = ["SimulatedMoments", "Token"]

PACK_NS = 5 * MS


class Token(NamedTuple):
    """What stands for one fragment of an optimizer's state."""

    donor: str
    incarnation: int
    fragment: int
    is_sound: bool
    """Its donor held every fragment, was in no need itself and not in quarantine, as far as it knew."""


class SimulatedMoments:
    """Performs what a learner machine commands about optimizer state."""

    def __init__(self, process: LearnerProcess) -> None:
        self.process = process
        self.packed: dict[int, Token] = {}
        self.num_taken = 0
        self.reset_reason = ""
        process.performers |= {
            do.CopyMoments: self._copy,
            do.TakeMoments: self._take,
            do.EndMoments: lambda c: process.call(
                PACK_NS, self._restored, "peer" if c.ok else "fresh", c.reason
            ),
            do.ResetMoments: self._reset,
        }

    def come_back(self, *, wants: bool) -> None:
        """A later life of a name: it asks a peer, or finds its own files."""
        now_ns, num_fragments = self.process.engine.now_ns, self.process.params.num_fragments
        if wants:
            self.process.handle(ev.MomentsWanted(now_ns, tuple(range(num_fragments))))
        else:
            self._restored("own", "saved by the life before")

    def boundary(self) -> None:
        """After the machine's own: begin anew, if every fragment was sent again after a quarantine."""
        process = self.process
        if self.reset_reason and all(slot.version >= 0 for slot in process.machine.slots):
            reason, self.reset_reason = self.reset_reason, ""
            for p in range(process.params.num_fragments):
                process.model.rewind(p)
            self._restored("fresh", reason)

    def _restored(self, source: str, reason: str) -> None:
        self.process.handle(ev.MomentsRestored(self.process.engine.now_ns, source, reason))

    def _copy(self, command: do.CopyMoments) -> None:
        machine, p = self.process.machine, command.fragment
        held = all(slot.version >= 0 for slot in machine.slots)
        is_sound = held and not machine.borrowing.missing and not self.reset_reason
        token = Token(self.process.name, machine.incarnation, p, is_sound)
        self.process.call(PACK_NS, self._pack, token)

    def _pack(self, token: Token) -> None:
        p = token.fragment
        self.packed[p] = token
        size = self.process.params.fragment_bytes[p]
        self.process.handle(ev.MomentsCopied(self.process.engine.now_ns, p, hash_of(token), size))

    def _take(self, command: do.TakeMoments) -> None:
        message, token = command.message, self.process.payload
        assert isinstance(token, Token), f"{message} came with {token}"
        assert (token.donor, token.fragment) == (message.donor, message.fragment), f"{message} is {token}"
        assert token.is_sound, f"{self.process.name} took {token}"
        self.num_taken += 1

    def _reset(self, command: do.ResetMoments) -> None:
        self.reset_reason = command.reason
