"""When optimizer state is saved, by whom, and where the next life takes it from."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from atoll.config import HealConfig, RunConfig
from atoll.core import commands as do
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.numerics.codec import codec_for
from atoll.numerics.moments import Copied, Moments
from atoll.numerics.partition import partition
from atoll.numerics.replica import Replica
from atoll.runtime.joining import moments_limit, sizes_of
from atoll.runtime.learner_shell import LearnerShell
from atoll.runtime.loop import Loop
from atoll.runtime.moment_files import MomentFiles, Stamp
from atoll.runtime.moment_keeper import MomentKeeper
from atoll.runtime.worker import Worker

LIMIT_S = 60.0
NUM_FRAGMENTS = 2
RUN = "reef 00"
SYNC = {
    "num_fragments": NUM_FRAGMENTS,
    "interval_steps": 8,
    "heartbeat_s": 3600.0,  # no timer fires, so nobody holds the lock at a boundary, and none is missed
    "alive_s": 36000.0,
    "retry_s": 3600.0,
}


class NotedFiles(MomentFiles):
    """Remembers who wrote what when."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__(state_dir)
        self.writes: list[tuple[int, int]] = []
        self.threads: set[str] = set()

    def write(self, moments: Moments, copied: Copied, stamp: Stamp) -> None:
        self.threads.add(threading.current_thread().name)
        self.writes.append((stamp.step, copied.fragment))
        super().write(moments, copied, stamp)


class Life:
    """One life of a learner without a network: a shell, its threads, a keeper, an optimizer."""

    def __init__(self, state_dir: Path | None, t: int = 0, has_optimizer: bool = True, **heal: Any) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 4))
        self.optimizer = torch.optim.AdamW(self.net.parameters())
        manifest = partition(self.net, NUM_FRAGMENTS, "rda")
        config = RunConfig.from_tables({"sync": SYNC})
        errors: list[BaseException] = []
        self.errors = errors
        self.loop, self.worker = Loop("test", errors.append), Worker("test", errors.append)
        params = sizes_of(manifest, config)
        f32 = codec_for("f32")
        self.told: list[Any] = []
        self.sent: list[tuple[Any, bytes]] = []
        self.shell = LearnerShell(
            params,
            Replica(self.net, manifest, f32, f32),
            self.loop,
            self.worker,
            self.told.append,
            lambda message, content: self.sent.append((message, bytes(content))),
        )
        self.files = NotedFiles(state_dir) if state_dir is not None else None
        self.keeper = MomentKeeper(
            "ada",
            RUN,
            self.shell,
            HealConfig(**heal),
            Moments(self.optimizer, self.net, manifest) if has_optimizer else None,
            self.files,
            lambda fragment: moments_limit(params.full_bytes[fragment]),
        )
        self.loop.start()
        self.worker.start()
        self.loop.call(self.shell.start, "ada", "key", 1)
        self.hear(msg.Welcome(1, 1, 1, t, 0, False))

    def hear(self, message: Any, content: memoryview | None = None) -> None:
        self.loop.call(self.shell.deliver, message, content)
        self.rest()

    def rest(self) -> None:
        """Until everything that is queued is done."""
        for _ in range(2):  # the worker may ask something of the loop, and the loop of the worker
            for queue in (self.worker.do, self.loop.call):
                done = threading.Event()
                queue(done.set)
                assert done.wait(LIMIT_S)
        assert not self.errors

    def step(self, num: int = 1, rest: bool = True) -> None:
        for _ in range(num):
            for parameter in self.net.parameters():
                parameter.grad = torch.randn(parameter.shape)
            self.optimizer.step()
            self.shell.boundary(8, 1000)
            self.keeper.boundary()
            if rest:
                self.rest()

    def state(self) -> list[dict[str, Any]]:
        states = [self.optimizer.state.get(parameter) for parameter in self.net.parameters()]
        return [{k: v.clone() for k, v in state.items()} for state in states if state]

    @property
    def restored(self) -> tuple[str, str]:
        self.rest()
        return self.shell.machine.restored

    def end(self) -> None:
        self.keeper.close()
        self.worker.stop()
        self.loop.stop()


@contextmanager
def life(state_dir: Path | None, t: int = 0, has_optimizer: bool = True, **heal: Any) -> Iterator[Life]:
    lived = Life(state_dir, t, has_optimizer, **heal)
    try:
        yield lived
    finally:
        lived.end()


def same(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> bool:
    pairs = list(zip(a, b, strict=True))
    return all(x.keys() == y.keys() and all(torch.equal(x[k], y[k]) for k in x) for x, y in pairs)


# Saving


def test_all_fragments_are_saved_once_per_interval_one_per_boundary_by_the_worker(tmp_path):
    with life(tmp_path, save_every_steps=10) as ada:
        ada.step(20)
        assert ada.files is not None
        assert ada.files.writes == [(5, 0), (10, 1), (15, 0), (20, 1)]
        assert ada.files.threads == {"atoll-test"}
        assert ada.keeper.num_saved == 4


def test_an_interval_shorter_than_the_fragments_saves_one_at_every_boundary(tmp_path):
    with life(tmp_path, save_every_steps=1) as ada:
        ada.step(4)
        assert ada.files is not None
        assert ada.files.writes == [(1, 0), (2, 1), (3, 0), (4, 1)]


def test_while_the_worker_is_behind_boundaries_are_skipped_and_nothing_is_queued(tmp_path):
    with life(tmp_path, save_every_steps=4) as ada:
        busy = threading.Event()
        ada.worker.do(busy.wait)
        ada.step(9, rest=False)
        busy.set()
        ada.rest()
        assert ada.files is not None
        assert ada.files.writes == [(2, 0)]
        ada.step(3)
        assert ada.files.writes == [(2, 0), (10, 1), (12, 0)], "what was skipped is not made up for"


def test_a_boundary_that_copies_for_somebody_else_is_passed_over_if_the_next_will_do(tmp_path):
    with life(tmp_path, save_every_steps=8) as ada:
        ada.step(3)
        ada.shell.num_offers += 1
        ada.step(1)
        ada.step(1)
        assert ada.files is not None
        assert ada.files.writes == [(5, 0)]
        for _ in range(8):  # no boundary is quiet now, so it is done when the next one is due
            ada.shell.num_adopted += 1
            ada.step(1)
        assert ada.files.writes == [(5, 0), (12, 1)]


@pytest.mark.parametrize("heal", [{"save_every_steps": 0}, {"moments": "fresh"}])
def test_nothing_is_saved_where_it_is_not_wanted(tmp_path, heal):
    with life(tmp_path, **{"save_every_steps": 1, **heal}) as ada:
        ada.step(3)
        ada.keeper.save_all(LIMIT_S)
        assert ada.files is not None
        assert ada.files.writes == []


def test_who_leaves_saves_everything_as_it_stands(tmp_path):
    with life(tmp_path, save_every_steps=1000) as ada:
        ada.step(3)
        ada.keeper.save_all(LIMIT_S)
        assert ada.files is not None
        assert ada.files.writes == [(3, 0), (3, 1)]
        assert ada.files.threads == {"atoll-test"}
        before = ada.state()
    with life(tmp_path, t=10) as again:
        again.keeper.restore()
        assert same(again.state(), before)


def test_who_leaves_without_a_step_leaves_the_files_alone(tmp_path):
    with life(tmp_path) as ada:
        ada.step(3)
        ada.keeper.save_all(LIMIT_S)
    with life(tmp_path) as again:
        again.keeper.save_all(LIMIT_S)
        assert again.files is not None
        assert again.files.writes == []


def test_leaving_does_not_wait_for_a_worker_that_hangs_or_a_step_that_broke_off(tmp_path, caplog):
    with life(tmp_path) as ada:
        ada.step(1)
        busy = threading.Event()
        ada.worker.do(busy.wait)
        ada.keeper.save_all(0.01)
        assert "from fragment 0 on is older" in caplog.text
        busy.set()
        ada.rest()

        def fail(*_: Any) -> None:
            raise ZeroDivisionError

        ada.optimizer.register_step_pre_hook(fail)
        with pytest.raises(ZeroDivisionError):
            ada.step(1)
        ada.keeper.save_all(LIMIT_S)


def test_a_disk_that_refuses_is_said_once_and_training_goes_on(tmp_path, caplog):
    (tmp_path / "moments").write_text("in the way")
    with life(tmp_path, save_every_steps=1) as ada:
        ada.step(3)
        assert caplog.text.count("could not be saved") == 1
        assert ada.keeper.num_saved == 0


def test_state_of_another_shape_is_said_once_for_each_parameter(tmp_path, caplog):
    with life(tmp_path, save_every_steps=1) as ada:
        ada.step(1)
        for state in ada.optimizer.state.values():
            state["history"] = torch.zeros(3)
        for _ in range(4):
            ada.keeper.boundary()
            ada.rest()
            ada.shell.boundary(8, 1000)
        assert caplog.text.count("has another shape and is not saved") == len(list(ada.net.parameters()))


# Coming back


def saved(state_dir: Path, t: int = 100) -> list[dict[str, Any]]:
    """A life that left its state."""
    with life(state_dir, t=t) as ada:
        ada.step(3)
        ada.keeper.save_all(LIMIT_S)
        return ada.state()


def test_own_files_are_taken_and_no_warm_up_is_needed(tmp_path):
    before = saved(tmp_path)
    with life(tmp_path, t=130) as again:
        again.keeper.restore()
        assert again.restored == ("own", "saved 30 ticks ago at tick 100")
        assert same(again.state(), before)
        assert again.keeper.warmup == 1.0


def test_a_first_start_is_fresh_without_a_warm_up(tmp_path):
    with life(tmp_path) as ada:
        ada.keeper.restore()
        assert ada.restored == ("fresh", "the run begins")
        assert ada.keeper.warmup == 1.0


@pytest.mark.parametrize(
    ("heal", "keeps", "reason"),
    [
        ({}, False, "there is no state_dir"),
        ({"max_age_steps": 20}, True, "what was saved is 100 ticks old, and 20 are allowed"),
        ({"moments": "fresh"}, True, "heal.moments is fresh"),
    ],
)
def test_whoever_starts_fresh_in_a_run_that_has_begun_warms_up(tmp_path, heal, keeps, reason):
    saved(tmp_path)
    with life(tmp_path if keeps else None, t=200, warmup_steps=3, **heal) as again:
        again.keeper.restore()
        assert again.restored == ("fresh", reason)
        factors = []
        for _ in range(5):
            factors.append(again.keeper.warmup)
            again.step(1)
        assert factors == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_a_warm_up_is_no_longer_than_the_run_is_old():
    with life(None, t=1, warmup_steps=50) as ada:
        ada.keeper.restore()
        assert ada.keeper.warmup == 0.5
        ada.step(1)
        assert ada.keeper.warmup == 1.0


def test_a_torn_fragment_costs_its_own_parameters_only(tmp_path):
    saved(tmp_path)
    MomentFiles(tmp_path).path(1).write_bytes(b"torn")
    with life(tmp_path, t=100) as again:
        again.keeper.restore()
        source, reason = again.restored
        assert source == "own"
        assert "parameters start fresh: This is not saved optimizer state" in reason
        assert 0 < len(again.state()) < 4
        assert again.keeper.warmup < 1.0


def test_an_optimizer_that_was_given_with_state_keeps_it(tmp_path):
    saved(tmp_path)
    with life(tmp_path, t=100) as again:
        again.step(1)
        before = again.state()
        again.keeper.restore()
        assert again.restored == ("own", "the optimizer came with its state")
        assert same(again.state(), before)


def test_without_an_optimizer_there_is_nothing_to_find(tmp_path):
    with life(tmp_path, t=100, has_optimizer=False) as ada:
        ada.keeper.restore()
        assert ada.restored == ("none", "no optimizer was given to join")
        ada.keeper.boundary()
        ada.keeper.save_all(LIMIT_S)
        assert ada.keeper.memory_bytes() == 0
        assert ada.keeper.warmup == 1.0


# Peers


def donate(donor: Life, fragment: int) -> memoryview:
    """What a donor sends when it is asked, copied at its next boundary."""
    for slot in donor.shell.machine.slots:
        slot.version = 0
    donor.hear(msg.DonateAsk(1, 1, fragment, "bob", 1))
    donor.step(1)
    message, content = donor.sent[-1]
    assert isinstance(message, msg.Donation)
    assert (message.fragment, message.recipient, message.num_bytes) == (fragment, "bob", len(content))
    return memoryview(bytearray(content))


def passed_on(fragment: int, content: memoryview) -> msg.Moments:
    return msg.Moments(1, 1, fragment, "ada", "0" * 32, len(content))


def asked_for(learner: Life) -> list[int]:
    return [message.fragment for message in learner.told if isinstance(message, msg.MomentsAsk)]


def test_a_peers_state_is_taken_in_at_a_boundary_and_ends_the_warm_up():
    with life(None) as ada, life(None, t=100, moments="peer") as bob:
        ada.step(3)
        bob.keeper.restore()
        assert bob.restored == ("", ""), "not decided yet"
        assert bob.keeper.warmup < 1.0
        bob.step(2)
        contents = [donate(ada, fragment) for fragment in range(NUM_FRAGMENTS)]
        for fragment, content in enumerate(contents):
            bob.hear(passed_on(fragment, content), content)
        assert asked_for(bob) == [0, 1]
        steps = [state["step"].item() for state in bob.state()]
        assert set(steps) == {2.0}, "its own fresh state, until a boundary"
        bob.shell.boundary(8, 1000)
        bob.keeper.boundary()
        assert bob.restored == ("peer", "from ada")
        assert {state["step"].item() for state in bob.state()} <= {4.0, 5.0}
        assert bob.keeper.warmup == 1.0
        bob.step(1)


def test_own_fragments_are_kept_and_only_the_missing_are_asked_for(tmp_path):
    saved(tmp_path)
    MomentFiles(tmp_path).path(0).unlink()
    with life(None) as ada, life(tmp_path, t=100, moments="peer") as bob:
        bob.keeper.restore()
        bob.step(1)
        ada.step(6)
        content = donate(ada, 0)
        bob.hear(passed_on(0, content), content)
        bob.keeper.boundary()
        assert asked_for(bob) == [0]
        assert bob.restored == ("peer", "from ada")
        steps = sorted({state["step"].item() for state in bob.state()})
        assert steps == [3.0 + 1, 7.0], "what it has trained since is not taken back"


def test_when_nobody_can_donate_the_fresh_state_is_kept():
    with life(None, t=100, moments="peer") as bob:
        bob.keeper.restore()
        bob.step(2)
        before = bob.state()
        bob.hear(msg.NoMoments(1, 1, "nobody is there"))
        bob.keeper.boundary()
        assert bob.restored == ("fresh", "nobody is there")
        assert same(bob.state(), before)
        assert bob.keeper.warmup < 1.0


def test_a_peers_state_that_does_not_fit_is_said_and_left_out(caplog):
    with life(None, t=100, moments="peer") as bob:
        bob.keeper.restore()
        for fragment in range(NUM_FRAGMENTS):
            content = memoryview(bytearray(b"something else"))
            bob.hear(passed_on(fragment, content), content)
        bob.keeper.boundary()
        assert bob.restored[0] == "fresh"
        assert "a peer's optimizer state is of no use" in caplog.text


def test_who_has_no_state_donates_nothing():
    with life(None) as ada:
        for slot in ada.shell.machine.slots:
            slot.version = 0
        ada.hear(msg.DonateAsk(1, 1, 0, "bob", 1))
        ada.shell.boundary(8, 1000)
        ada.rest()
        assert ada.sent == []
        assert ada.shell.donations == {}


def test_a_donation_larger_than_the_syncer_takes_is_not_sent():
    with life(None) as ada:
        ada.keeper.donation_limit = lambda fragment: 100
        ada.step(1)
        for slot in ada.shell.machine.slots:
            slot.version = 0
        ada.hear(msg.DonateAsk(1, 1, 0, "bob", 1))
        ada.step(1)
        assert ada.sent == []


# Quarantine


def send_all_again(ada: Life) -> None:
    """As if every fragment had come anew, and been trained on since."""
    for fragment, slot in enumerate(ada.shell.machine.slots):
        ada.shell.replica.set_base_from_local(fragment)
        slot.version = 0


def test_a_reset_forgets_state_and_files_once_every_fragment_was_sent_again_and_warms_up(tmp_path):
    with life(tmp_path, t=5, save_every_steps=1, warmup_steps=4) as ada:
        ada.step(3)
        ada.shell.performers[do.ResetMoments](do.ResetMoments("3 strikes"))
        ada.keeper.heal = HealConfig(save_every_steps=0, warmup_steps=4)
        ada.keeper.boundary()
        assert ada.state(), "what is still spoiled would spoil fresh state at once"
        send_all_again(ada)
        ada.keeper.boundary()
        assert ada.state() == []
        assert ada.keeper.warmup == 0.2
        assert ada.restored == ("fresh", "3 strikes")
        assert ada.files is not None
        assert list(ada.files.folder.iterdir()) == []


@pytest.mark.parametrize("has_optimizer", [True, False])
def test_after_a_reset_all_fragments_begin_together_from_what_was_sent(has_optimizer):
    with life(None) as ada:
        ada.step(1)
        if not has_optimizer:
            ada.keeper.moments = None
        send_all_again(ada)
        wanted = [ada.shell.replica.base(p).clone() for p in range(len(ada.shell.machine.slots))]
        with torch.no_grad():
            for parameter in ada.net.parameters():
                parameter.fill_(float("nan"))
        ada.shell.performers[do.ResetMoments](do.ResetMoments("3 strikes"))
        ada.keeper.boundary()
        for p, base in enumerate(wanted):
            assert torch.equal(ada.shell.replica.gather(p), base)


def test_who_leaves_before_it_could_begin_anew_leaves_no_spoiled_state(tmp_path):
    with life(tmp_path, save_every_steps=1) as ada:
        ada.step(3)
        ada.shell.performers[do.ResetMoments](do.ResetMoments("3 strikes"))
        ada.keeper.save_all(60.0)
        ada.rest()
        assert ada.files is not None
        assert list(ada.files.folder.iterdir()) == []


def test_events_of_the_keeper_are_those_of_the_machine():
    """The tape must be able to hold them."""
    assert {ev.MomentsWanted, ev.MomentsCopied, ev.MomentsRestored} <= set(ev.Event.__args__)
