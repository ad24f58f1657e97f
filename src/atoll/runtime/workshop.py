"""Where the syncer computes: bodies are held, inspected, merged and installed here.

Bodies wait in the spool, each believed only if it has the digest it came with. Inspecting and merging
happen on the thread `compute`, in the order in which the machine asked for them; the answers come back as
events on the loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import xxhash
from torch import Tensor

from atoll.config import RunConfig
from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.records import RoundRecord, SeedRecord, StoredFragment
from atoll.core.syncer import SyncerMachine
from atoll.numerics.codec import codec_for
from atoll.numerics.global_state import GlobalModel, MergeResult
from atoll.numerics.manifest import Manifest
from atoll.numerics.outer import digest
from atoll.runtime.failpoints import reach
from atoll.runtime.loop import Loop
from atoll.runtime.spool import Spool
from atoll.runtime.worker import Worker

__all__ = ["Workshop", "global_model"]

log = logging.getLogger("atoll")


def global_model(manifest: Manifest, config: RunConfig) -> GlobalModel:
    """The arithmetic of a run with this model and these settings."""
    codec = config.codec
    return GlobalModel(manifest, codec_for(codec.up), codec_for(codec.down), *config.outer.eta_mu)


@dataclass(eq=False)
class Workshop:
    """See the module. Loop's thread, unless a method says otherwise."""

    model: GlobalModel
    spool: Spool[tuple[int, int, str]]
    loop: Loop
    compute: Worker
    handle: Callable[[ev.Event], None]
    inspected: dict[tuple[int, int], dict[str, Tensor]] = field(default_factory=dict)
    """Bodies of a round by name: the very tensors, so that `merge` need not measure them again."""
    results: dict[tuple[int, int], MergeResult] = field(default_factory=dict)
    seeds: dict[tuple[str, int], dict[int, Tensor]] = field(default_factory=dict)

    def numel(self, fragment: int) -> int:
        """Number of values of a fragment."""
        return self.model.manifest.fragments[fragment].numel

    # Coming in

    def hold_body(self, machine: SyncerMachine, message: msg.Body, content: memoryview) -> bool:
        """Keep a body that a round waits for; others, and spoiled ones, are not kept."""
        rnd = machine.rounds.open.get(message.fragment)
        if rnd is None or rnd.number != message.round or message.epoch != machine.desk.epoch:
            return False
        if message.name in rnd.bodies or rnd.asked.get(message.name) != message.incarnation:
            return False
        if xxhash.xxh3_128_hexdigest(content) != message.digest:
            log.warning(
                "the body of %s on fragment %d does not fit its digest", message.name, message.fragment
            )
            return False
        self.spool.hold((message.fragment, message.round, message.name), content)
        if not rnd.bodies:
            reach("S6")
        return True

    def hold_seed(self, machine: SyncerMachine, message: msg.SeedBody, content: memoryview) -> bool:
        """Keep a fragment of the initial weights, as long as there are none."""
        if machine.desk.state.fragments or machine.seeding.is_committing:
            return False
        values = torch.frombuffer(content, dtype=torch.float32)
        if digest(values) != message.digest or not bool(torch.isfinite(values).all()):
            log.warning("the seed of %s on fragment %d is spoiled", message.name, message.fragment)
            return False
        self.seeds.setdefault((message.name, message.incarnation), {})[message.fragment] = values
        reach("S4")
        return True

    def seed_of(self, record: SeedRecord) -> list[Tensor]:
        """The initial weights that a record is about."""
        parts = self.seeds[record.source, record.incarnation]
        return [parts[p] for p in range(len(record.digests))]

    # Rounds

    def inspect(self, command: do.Inspect) -> None:
        """Measure the bodies of a round."""
        self.compute.do(self._inspect, command)

    def _inspect(self, command: do.Inspect) -> None:
        """Compute's thread."""
        p, number = command.fragment, command.round
        bodies = {name: self.spool.get((p, number, name)) for name, _ in command.offers}
        self.inspected[p, number] = bodies
        results = tuple(self.model.inspect(p, list(bodies.items())))
        self.loop.call(lambda: self.handle(ev.Inspected(self.loop.now_ns(), p, number, results)))

    def merge(self, command: do.Merge) -> None:
        """Merge them, and take the outer step aside."""
        self.compute.do(self._merge, command)

    def _merge(self, command: do.Merge) -> None:
        """Compute's thread."""
        p, number, parts = command.fragment, command.round, command.contributors
        bodies = self.inspected.pop((p, number))
        in_order = [bodies[part.name] for part in parts]
        result = self.model.merge(p, parts, in_order, command.momentum_factor)
        self.loop.call(self._merged, command, result)

    def _merged(self, command: do.Merge, result: MergeResult) -> None:
        p, number, parts = command.fragment, command.round, command.contributors
        self.results[p, number] = result
        reach("S7")
        now_ns = self.loop.now_ns()
        self.handle(ev.Merged(now_ns, p, number, result.delta_digest, result.digest, result.finite, parts))

    def bodies_of(self, record: RoundRecord) -> dict[str, Tensor]:
        """What a merge was made of, by learner; held until its round is discarded."""
        p, number = record.fragment, record.round
        return {part.name: self.spool.get((p, number, part.name)) for part in record.contributors}

    def install(self, command: do.Install, fragments: Sequence[StoredFragment]) -> None:
        """Serve what is committed: a merge, or the seed with the digests of these fragments."""
        if command.fragment >= 0:
            self.model.install(command.fragment, self.results[command.fragment, command.round])
            return
        digests = [fragment.digest for fragment in fragments]
        for parts in self.seeds.values():
            if [digest(parts[p]) if p in parts else "" for p in range(len(digests))] == digests:
                self.model.start([parts[p] for p in range(len(digests))])
        self.seeds.clear()

    def discard(self, command: do.Discard) -> None:
        """Forget what is held of a round."""
        p, number = command.fragment, command.round
        self.spool.drop(lambda key: key[0] == p and key[1] <= number)
        self.inspected.pop((p, number), None)
        self.results.pop((p, number), None)
