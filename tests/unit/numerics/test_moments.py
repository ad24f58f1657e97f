"""Optimizer state by fragment: cut, copied, written, read and put back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atoll.errors import ModelError
from atoll.numerics.moments import Copied, Installed, Moments
from atoll.numerics.partition import partition
from tests.unit.numerics.samples import Tied

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "SGD without": lambda p: torch.optim.SGD(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
}


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


class Life:
    """A model, its optimizer and its moments, as one process has them."""

    def __init__(self, make: Make = adamw, net: nn.Module | None = None, fragments: int = 3) -> None:
        torch.manual_seed(0)
        self.net = Tied() if net is None else net
        self.optimizer = make([p for p in self.net.parameters() if p.requires_grad])
        self.moments = Moments(self.optimizer, self.net, partition(self.net, fragments, "rda"))
        self.fragments = range(fragments)

    def train(self, num_steps: int = 3, seed: int = 1) -> Life:
        made = torch.Generator().manual_seed(seed)
        for _ in range(num_steps):
            for parameter in self.net.parameters():
                if parameter.requires_grad:
                    parameter.grad = torch.randn(parameter.shape, generator=made).to(parameter.dtype)
            self.optimizer.step()
        return self

    def saved(self) -> list[bytearray]:
        """Every fragment as a file."""
        return [bytearray(b"".join(self.moments.to_bytes(self.moments.copy(p)))) for p in self.fragments]

    def sent(self) -> list[bytearray]:
        """Every fragment as a peer would get it."""
        return [bytearray(self.moments.to_wire(self.moments.copy(p))) for p in self.fragments]

    def read(self, contents: list[bytearray]) -> list[Copied]:
        return [self.moments.from_bytes(p, content) for p, content in enumerate(contents)]

    def install(self, contents: list[bytearray]) -> Installed:
        return self.moments.install(self.read(contents))

    def state(self) -> dict[str, dict[str, Any]]:
        named = {name: self.optimizer.state.get(p) for name, p in self.net.named_parameters()}
        return {name: dict(state) for name, state in named.items() if state}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride() and torch.equal(a, b)
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_was_saved_is_put_back_bit_for_bit(name):
    old, new = Life(OPTIMIZERS[name]).train(), Life(OPTIMIZERS[name])
    installed = new.install(old.saved())
    assert installed.fresh == ()
    assert sorted(installed.restored) == sorted(s.name for s in new.moments.manifest.storages)
    assert same(new.state(), old.state())
    new.net.load_state_dict(old.net.state_dict())
    old.train(seed=2)
    new.train(seed=2)
    assert same(new.net.state_dict(), old.net.state_dict()), "and the next steps are the same"


def test_a_parameter_that_is_split_over_fragments_is_put_together_again():
    net = nn.Linear(40, 64, bias=False)
    old, new = Life(net=net, fragments=4).train(), Life(net=nn.Linear(40, 64, bias=False), fragments=4)
    assert len({f.index for f in new.moments.manifest.fragments for u in f.units}) == 4
    assert new.install(old.saved()) == Installed(("weight",), ())
    assert same(new.state(), old.state())


def test_of_units_saved_at_different_steps_the_newest_counts():
    old = Life(net=nn.Linear(40, 64, bias=False), fragments=4).train()
    early = old.saved()
    late = old.train().saved()
    new = Life(net=nn.Linear(40, 64, bias=False), fragments=4)
    new.install([late[0], early[1], early[2], early[3]])
    assert new.state()["weight"]["step"] == 6.0


def test_a_parameter_of_which_a_unit_is_missing_is_left_as_it_is():
    old, new = Life().train(), Life()
    new.net.get_parameter("mix.bias").grad = torch.ones(8)
    new.optimizer.step()
    copies = new.read(old.saved())
    gone = {unit.storage for unit in copies[1].units}
    before = {name: state for name, state in new.state().items() if name in gone}
    installed = new.moments.install([copies[0], copies[2]])
    assert set(installed.fresh) == gone
    assert set(installed.restored) == {s.name for s in new.moments.manifest.storages} - gone
    assert same({name: state for name, state in new.state().items() if name in gone}, before)
    new.train()


def test_only_the_parameters_that_are_named_are_put_back():
    old, new = Life().train(), Life()
    prepared = new.moments.prepare(new.read(old.saved()), ["mix.bias"])
    assert new.state() == {}, "nothing changes before it is put into place"
    assert new.moments.put(prepared) == Installed(("mix.bias",), ())
    assert list(new.state()) == ["mix.bias"]


def test_state_that_does_not_exist_yet_is_saved_as_nothing():
    old, new = Life(), Life()
    assert not old.moments.has_state
    assert new.install(old.saved()).fresh == ()
    assert new.state() == {}
    assert not old.optimizer.state, "looking makes nothing"


def test_a_parameter_that_was_never_trained_has_no_state_and_is_whole():
    old, new = Life(), Life()
    old.net.get_parameter("mix.bias").grad = torch.ones(8)
    old.optimizer.step()
    assert new.install(old.saved()).fresh == ()
    assert list(new.state()) == ["mix.bias"]


def test_groups_keep_their_own_kinds_of_state():
    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        groups: list[dict[str, Any]] = [
            {"params": parameters[:1], "momentum": 0.9},
            {"params": parameters[1:]},
        ]
        return torch.optim.SGD(groups, lr=0.01)

    old, new = Life(make).train(), Life(make)
    new.install(old.saved())
    assert list(new.state()) == ["embed.weight"]
    assert same(new.state(), old.state())


def test_bf16_moments_stay_bf16():
    old, new = Life(net=Tied().bfloat16()).train(), Life(net=Tied().bfloat16())
    assert old.state()["embed.weight"]["exp_avg"].dtype == torch.bfloat16
    new.install(old.saved())
    assert same(new.state(), old.state())


def test_types_of_every_width_lie_beside_each_other():
    net = nn.ModuleList([nn.Linear(3, 3), nn.Linear(5, 1).bfloat16(), nn.Linear(3, 1).double()])
    old, new = Life(net=net, fragments=1).train(), Life(net=net, fragments=1)
    for parameter in old.net.parameters():
        old.optimizer.state[parameter]["mask"] = torch.ones(parameter.shape, dtype=torch.uint8)
    before, saved = old.state(), old.saved()
    new.optimizer.state.clear()
    new.install(saved)
    assert same(new.state(), before)
    pieces = [piece.values for unit in new.read(saved)[0].units for piece in unit.pieces.values()]
    assert all(values.data_ptr() % values.itemsize == 0 for values in pieces)


def test_state_in_another_layout_comes_back_in_it():
    def net() -> nn.Module:
        return nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch

    old, new = Life(net=net()).train(), Life(net=net())
    assert not old.state()["weight"]["exp_avg"].is_contiguous()
    new.install(old.saved())
    assert same(new.state(), old.state())


def test_a_parameter_without_dimensions_has_its_state_too():
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.tensor(2.0))
            self.weight = nn.Parameter(torch.ones(4))

    old, new = Life(net=Scale(), fragments=1).train(), Life(net=Scale(), fragments=1)
    assert new.install(old.saved()).fresh == ()
    assert same(new.state(), old.state())


def test_state_of_another_shape_is_not_saved_and_its_parameter_starts_fresh():
    def factored(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adafactor(parameters)

    old, new = Life(factored).train(), Life(factored)
    copies = [old.moments.copy(p) for p in old.fragments]
    assert {u.storage for c in copies for u in c.units if not u.savable} == {"embed.weight", "mix.weight"}
    assert new.install(old.saved()) == Installed(("mix.bias",), ("embed.weight", "mix.weight"))


def test_tied_weights_are_saved_once():
    old = Life(fragments=1).train()
    assert [unit.storage for unit in old.moments.copy(0).units].count("embed.weight") == 1
    assert "out.weight" not in [unit.storage for unit in old.moments.copy(0).units]


# Bytes


def test_a_peer_gets_bf16_and_exact_counters():
    old, new = Life(net=Tied(500, 16)).train(), Life(net=Tied(500, 16))
    sent = old.sent()
    assert sum(map(len, sent)) < 0.6 * sum(map(len, old.saved()))
    new.install(sent)
    there, here = old.state()["embed.weight"], new.state()["embed.weight"]
    assert same(here["step"], there["step"])
    assert here["exp_avg"].dtype == torch.float32
    assert torch.equal(here["exp_avg"], there["exp_avg"].bfloat16().float())


def test_any_reader_of_safetensors_can_read_a_file(tmp_path):
    from safetensors.torch import load_file

    life = Life(fragments=1).train()
    (tmp_path / "0.safetensors").write_bytes(life.saved()[0])
    tensors = load_file(tmp_path / "0.safetensors")
    assert len(tensors) == 2 * 3
    assert any(torch.equal(v, life.state()["mix.bias"]["exp_avg"]) for v in tensors.values())


def test_notes_travel_with_the_bytes():
    life = Life().train()
    content = bytearray(b"".join(life.moments.to_bytes(life.moments.copy(0), {"t": 7})))
    assert life.moments.from_bytes(0, content).notes == {"t": 7}


def test_every_changed_byte_that_matters_is_found():
    life = Life(net=nn.Linear(2, 2), fragments=1).train()
    whole = life.saved()[0]
    for at in range(len(whole)):
        torn = bytearray(whole)
        torn[at] ^= 0x10
        try:
            found = life.moments.from_bytes(0, torn)
        except ModelError:
            continue
        life.moments.install([found])
        assert life.saved()[0] == whole, f"byte {at} is another, and so is what was read"


@pytest.mark.parametrize("length", [0, 4, 8, 100, -1])
def test_a_file_that_ends_early_is_refused(length):
    life = Life().train()
    with pytest.raises(ModelError, match="not saved optimizer state"):
        life.moments.from_bytes(0, life.saved()[0][:length])


@pytest.mark.parametrize(
    ("make", "net", "reason"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), Tied(), "it is of AdamW, and this is SGD"),
        (lambda p: torch.optim.AdamW(p, amsgrad=True), Tied(), "was trained with amsgrad off"),
        (adamw, Tied(width=6), "another model"),
    ],
)
def test_state_of_another_optimizer_or_model_is_refused_in_words(make, net, reason):
    saved = Life().train().saved()
    with pytest.raises(ModelError, match=reason):
        Life(make, net).install(saved)


def test_state_of_another_fragment_is_refused():
    life = Life().train()
    with pytest.raises(ModelError, match="of fragment 1, not 0"):
        life.moments.from_bytes(0, life.saved()[1])


def test_state_that_is_not_finite_is_refused():
    life = Life(fragments=1).train()
    life.state()["mix.bias"]["exp_avg"][3] = float("nan")
    with pytest.raises(ModelError, match="not finite"):
        life.moments.from_bytes(0, life.saved()[0])


def test_how_an_optimizer_runs_may_change():
    saved = Life(lambda p: torch.optim.AdamW(p, foreach=True)).train().saved()
    assert Life(lambda p: torch.optim.AdamW(p, foreach=False)).install(saved).fresh == ()


# Threads and memory


def test_copies_use_the_same_memory_again():
    life = Life().train()

    def rooms() -> set[int]:
        used = set()
        for p in life.fragments:
            copied = life.moments.copy(p)
            assert copied.room is not None
            used.add(copied.room.data_ptr())
            life.moments.release(copied)
        return used

    rooms()  # it grows to the largest fragment
    assert rooms() == rooms()
    assert len(rooms()) == 1
    assert life.moments.memory_bytes() > 0


def test_a_copy_does_not_change_when_training_goes_on():
    life = Life().train()
    copied = life.moments.copy(0)
    before = b"".join(life.moments.to_bytes(copied))
    life.train()
    assert b"".join(life.moments.to_bytes(copied)) == before
    assert b"".join(life.moments.to_bytes(life.moments.copy(0))) != before


def test_a_copy_beside_a_step_of_the_optimizer_is_not_taken():
    life = Life().train()
    seen: list[object] = []
    life.optimizer.register_step_pre_hook(lambda *_: seen.append(life.moments.copy_between(0)))
    life.train(1)
    assert seen == [None]
    assert life.moments.copy_between(0) is not None


def test_a_copy_during_which_a_step_began_and_ended_is_not_taken():
    life = Life().train()
    plain = life.moments.copy

    def slow(fragment: int) -> Copied:
        copied = plain(fragment)
        thread = threading.Thread(target=life.train, args=(1,))
        thread.start()
        thread.join()
        return copied

    life.moments.copy = slow  # type: ignore[method-assign]  # a copy that takes as long as a step
    assert life.moments.copy_between(0) is None


def test_a_step_that_raised_is_known_to_its_own_thread():
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    life = Life().train()
    life.optimizer.register_step_pre_hook(fail)
    with pytest.raises(ZeroDivisionError):
        life.train(1)
    assert life.moments.is_broken_off
    assert life.moments.copy_between(0) is None


def test_reset_forgets_everything_and_training_goes_on():
    life = Life().train()
    life.moments.reset()
    assert life.state() == {}
    life.train(1)
    assert life.state()["mix.bias"]["step"] == 1.0


def test_a_detached_optimizer_is_left_alone():
    life = Life()
    life.moments.detach()
    life.train(2)
    assert life.moments._num_begun == 0


class Wrapper(torch.optim.Optimizer):
    """As some libraries wrap optimizers: everything is handed on, and nothing of the base class is set up."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner

    @property
    def state(self) -> Any:  # type: ignore[override]  # so do they
        return self.inner.state

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.inner.param_groups

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()


def test_a_wrapped_optimizer_without_hooks_is_saved_and_put_back():
    old, new = (Life(lambda p: Wrapper(adamw(p))) for _ in range(2))
    old.train()
    assert old.moments.copy_between(0) is not None
    assert new.install(old.saved()).fresh == ()
    assert same(new.state(), old.state())
    new.moments.detach()
