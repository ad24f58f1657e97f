import pytest
import torch
from torch import nn

from atoll.numerics.codec import codec_for
from atoll.numerics.ferry import NUM_BUFFERS, CudaDevice, Ferry
from atoll.numerics.partition import partition
from atoll.numerics.replica import Replica
from tests.unit.numerics.fake_device import FakeDevice, RaceError
from tests.unit.numerics.samples import decoded

F32 = codec_for("f32")
NUM_FRAGMENTS = NUM_BUFFERS + 1  # so that a buffer is used again while its last use is still queued
LATE = pytest.mark.parametrize("late", ["training", "side"])


class Plain:
    """The CPU: everything happens at once."""

    def run(self, what, operation, *touched):
        with torch.no_grad():
            operation()

    def finish(self):
        pass


class Forgetful(FakeDevice):
    """Forgets to wait on one stream, or to let the host wait."""

    def __init__(self, late, forgets):
        super().__init__(late)
        self.forgets = forgets
        self.inside = False

    def wait(self, event):
        if self.current != self.forgets and self.current != event.stream:
            self.inside = True
            self.synchronize(event)
            self.inside = False

    def synchronize(self, event):
        if self.inside or self.forgets != "host":
            super().synchronize(event)


def replica_on(device):
    model = nn.Linear(4, 3, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.arange(12.0).view(3, 4))
    manifest = partition(model, NUM_FRAGMENTS)
    ferry = None
    if isinstance(device, FakeDevice):
        ferry = Ferry(device, max(fragment.numel for fragment in manifest.fragments))
    replica = Replica(model, manifest, F32, F32, ferry=ferry)
    for p in range(NUM_FRAGMENTS):
        replica.set_base_from_local(p)
    return model.weight, replica


def train(device, weight):
    device.run("training: step", lambda: weight.mul_(1.5), weight)


def offers(device):
    """Several rounds of offers on all fragments, training before, between and after; returns the deltas."""
    weight, replica = replica_on(device)
    deltas = []
    for _ in range(3):
        train(device, weight)
        pending = [replica.snapshot(p) for p in range(NUM_FRAGMENTS)]
        train(device, weight)
        for p, offer in enumerate(pending):
            replica.release(p)
            deltas.append(decoded(replica.encode(p, offer), offer.base.numel()))
            replica.settle(p, offer, merged=False)
    device.finish()
    return torch.cat([*deltas, weight.detach().reshape(-1)])


def publishes(device):
    """Several publishes on all fragments, adopted while training goes on; returns the final weights."""
    weight, replica = replica_on(device)
    for step in range(3):
        train(device, weight)
        for p in range(NUM_FRAGMENTS):
            newest = replica.newest(p)
            version = replica.next_base(p, newest, F32.encode(torch.full_like(newest, 10.0**-step)))
            replica.put_staged(p, version, replica.prefetch(version))
            replica.adopt(p, merged=False)
        train(device, weight)
    device.finish()
    return weight.detach().reshape(-1).clone()


@LATE
@pytest.mark.parametrize("story", [offers, publishes])
def test_a_ferry_changes_no_value_whichever_stream_is_late(story, late):
    assert torch.equal(story(FakeDevice(late)), story(Plain()))


@pytest.mark.parametrize(
    ("story", "forgets"),
    [
        (offers, "training"),  # gathers into a buffer that is still being copied out
        (offers, "side"),  # copies a buffer out before it is gathered
        (offers, "host"),  # encodes before the snapshot has arrived
        (publishes, "training"),  # scatters a buffer before it is filled
        (publishes, "side"),  # fills a buffer that is still being scattered
    ],
)
def test_every_wait_is_needed(story, forgets):
    def goes_wrong(late):
        try:
            return not torch.equal(story(Forgetful(late, forgets)), story(Plain()))
        except RaceError:
            return True

    assert goes_wrong("training") or goes_wrong("side")


def test_an_offer_leaves_in_two_legs_and_the_second_waits_for_the_first():
    device = FakeDevice("training")
    _, replica = replica_on(device)
    pending = replica.snapshot(0)
    assert device.log == ["training: other -> device", "side: device -> pinned"]
    assert not bool(pending.snapshot.isnan().any())


def test_a_snapshot_makes_the_training_thread_wait_for_nothing():
    device = FakeDevice("side")
    _, replica = replica_on(device)
    pending = replica.snapshot(0)
    assert device.log == ["training: other -> device"]  # the copy to the host is only queued
    with pytest.raises(RaceError, match="host reads"):
        device.touch("host reads", pending.snapshot)
    replica.encode(0, pending)
    assert device.log[1:] == ["side: device -> pinned"]
    device.touch("host reads", pending.snapshot)


def test_several_snapshots_at_one_boundary_do_not_wait_for_each_others_way_out():
    device = FakeDevice("side")
    _, replica = replica_on(device)
    for p in range(NUM_BUFFERS):
        replica.snapshot(p)
    assert [line for line in device.log if line.startswith("side")] == []


def test_a_version_comes_in_before_the_boundary_and_is_then_copied_within_the_device():
    device = FakeDevice("training")
    _, replica = replica_on(device)
    version = replica.base(0) + 1.0
    cargo = replica.prefetch(version)
    replica.put_staged(0, version, cargo)
    assert device.log == ["side: other -> device"]
    replica.adopt(0, merged=False)
    device.finish()
    assert device.log[1:] == ["training: device -> other"]
    assert torch.equal(replica.gather(0), version)


def test_an_offer_that_is_never_encoded_still_arrives_before_its_memory_is_used_again():
    device = FakeDevice("side")
    _, replica = replica_on(device)
    pending = replica.snapshot(0)
    replica.release(0)
    replica.settle(0, pending, merged=False)
    device.touch("the next snapshot", pending.snapshot)
    assert replica.snapshot(0).snapshot is pending.snapshot


def test_without_a_free_buffer_a_version_is_adopted_from_the_host():
    device = FakeDevice("side")
    _, replica = replica_on(device)
    versions = [replica.base(p) + 1.0 for p in range(NUM_FRAGMENTS)]
    cargoes = [replica.prefetch(version) for version in versions]
    assert [cargo is None for cargo in cargoes] == [False] * NUM_BUFFERS + [True]
    for p, (version, cargo) in enumerate(zip(versions, cargoes, strict=True)):
        replica.put_staged(p, version, cargo)
        replica.adopt(p, merged=False)
        assert torch.equal(replica.gather(p), version)
    assert replica.prefetch(versions[0]) is not None  # and the buffers are free again


def test_versions_that_are_replaced_or_forgotten_give_their_buffers_back():
    _, replica = replica_on(FakeDevice("side"))
    version = replica.base(0) + 1.0
    for _ in range(3 * NUM_BUFFERS):
        cargo = replica.prefetch(version)
        assert cargo is not None
        replica.put_staged(0, version, cargo)
    replica.unstage(0)
    assert all(replica.prefetch(version) is not None for _ in range(NUM_BUFFERS))


@pytest.mark.parametrize("adopt", ["blend", "rebase"])
def test_modes_that_compute_on_the_host_read_a_snapshot_only_once_it_has_arrived(adopt):
    device = FakeDevice("side")
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 10.0)
    replica = Replica(model, partition(model, 1), F32, F32, adopt=adopt, ferry=Ferry(device, 1))
    replica.set_base_from_local(0)
    device.run("training: step", lambda: model.weight.fill_(7.0), model.weight)
    replica.snapshot(0)
    device.run("training: step", lambda: model.weight.fill_(6.0), model.weight)
    version = torch.tensor([8.0])
    assert replica.prefetch(version) is None
    replica.put_staged(0, version)
    replica.adopt(0, merged=True)
    assert model.weight.item() == {"blend": 7.0, "rebase": 8.0 + (6.0 - 7.0)}[adopt]


def test_a_model_on_the_cpu_has_no_ferry():
    _, replica = replica_on(Plain())
    assert replica.snapshot(0).arrival is None
    assert replica.prefetch(replica.base(0)) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("num_steps", [1, 5])
def test_a_real_gpu_passes_through_the_same_motions(num_steps):
    model = nn.Linear(512, 512).cuda()
    manifest = partition(model, 2)
    device = CudaDevice(next(model.parameters()).device)
    replica = Replica(
        model, manifest, F32, F32, ferry=Ferry(device, max(f.numel for f in manifest.fragments))
    )
    for p in range(2):
        replica.set_base_from_local(p)
    for _ in range(num_steps):
        with torch.no_grad():
            model.weight.sub_(0.5)
        for p in range(2):
            local, pending = replica.gather(p), replica.snapshot(p)
            with torch.no_grad():
                model.bias.add_(1.0)
            delta = decoded(replica.encode(p, pending), local.numel())
            assert torch.equal(delta, replica.base(p) - local)
            version = replica.next_base(p, replica.newest(p), F32.encode(-delta))
            replica.put_staged(p, version, replica.prefetch(version))
            replica.adopt(p, merged=True)
            assert torch.equal(replica.gather(p), version)
