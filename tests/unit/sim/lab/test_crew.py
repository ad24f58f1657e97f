"""Steps computed together are the steps that each learner would take alone."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from atoll.recipes.learning import adamw
from atoll.recipes.networks import Network, build
from atoll.sim.lab.crew import Crew, score
from atoll.sim.lab.data import Examples

SHAPE = {"width": 16, "layers": 1, "heads": 2}


def initial() -> Network:
    torch.manual_seed(3)
    return build("text", SHAPE)


def examples(seed: int, count: int = 2) -> Examples:
    generator = torch.Generator().manual_seed(seed)
    windows = torch.randint(0, 256, (count, 9), generator=generator)
    return Examples(windows[:, :-1].contiguous(), windows[:, 1:].contiguous())


def gradient_alone(model: Network, batch: Examples) -> dict[str, torch.Tensor]:
    loss = cross_entropy(model(input_ids=batch.inputs).logits.flatten(0, -2), batch.targets.flatten())
    found = torch.autograd.grad(loss, list(model.parameters()))
    return dict(zip((name for name, _ in model.named_parameters()), found, strict=True))


def diverse_crew(size: int, *, is_stacked: bool = True) -> Crew:
    """Learners that have drifted apart."""
    crew = Crew(initial, size, is_stacked)
    with torch.no_grad():
        for slot, model in enumerate(crew.models):
            for parameter in model.parameters():
                parameter.add_(0.01 * slot)
    return crew


def assert_gradients(crew: Crew, slot: int, batch: Examples) -> None:
    for name, expected in gradient_alone(crew.models[slot], batch).items():
        found = dict(crew.models[slot].named_parameters())[name].grad
        assert found is not None
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_a_learners_parameters_are_rows_of_the_stack():
    crew = Crew(initial, 3)
    with torch.no_grad():
        crew.models[1].norm.weight.fill_(7.0)
    assert crew.stacks["norm.weight"][1].eq(7.0).all()
    assert crew.stacks["norm.weight"][0].eq(1.0).all()


def test_steps_in_flight_are_computed_in_one_pass():
    crew = diverse_crew(4)
    batches = [examples(slot) for slot in range(4)]
    for slot, batch in enumerate(batches):
        crew.prepare(slot, batch)
    for slot, batch in enumerate(batches):
        crew.gradients(slot)
        assert_gradients(crew, slot, batch)
    assert crew.passes == 1


def test_some_of_the_learners_are_computed_together_too():
    crew = diverse_crew(4)
    for slot in (0, 2, 3):
        crew.prepare(slot, examples(slot))
    crew.gradients(2)
    for slot in (0, 2, 3):
        assert_gradients(crew, slot, examples(slot))
    assert crew.passes == 1
    assert [crew.is_in_flight(slot) for slot in range(4)] == [True, False, False, True]


def test_learners_with_fewer_examples_are_computed_apart():
    crew = diverse_crew(2)
    crew.prepare(0, examples(0, 2))
    crew.prepare(1, examples(1, 1))
    crew.gradients(0)
    crew.gradients(1)
    assert_gradients(crew, 0, examples(0, 2))
    assert_gradients(crew, 1, examples(1, 1))
    assert crew.passes == 2


def train(*, is_stacked: bool) -> Crew:
    crew = diverse_crew(3, is_stacked=is_stacked)
    optimizers = [adamw(model, 1e-2, 0.1) for model in crew.models]
    for step in range(6):
        for slot in range(3):
            crew.prepare(slot, examples(10 * step + slot))
        for slot, optimizer in enumerate(optimizers):
            crew.gradients(slot)
            optimizer.step()
    return crew


def test_training_in_a_stack_changes_nothing_beyond_rounding():
    together, apart = train(is_stacked=True), train(is_stacked=False)
    assert (together.passes, apart.passes) == (6, 18)
    for name, stack in together.stacks.items():
        moved = (stack - diverse_crew(3).stacks[name]).abs().max()
        torch.testing.assert_close(stack, apart.stacks[name], rtol=0, atol=1e-3 * float(moved) + 1e-6)


def test_gradients_lie_in_memory_as_the_fused_optimizer_reads_them():
    crew = diverse_crew(2)
    for slot in range(2):
        crew.prepare(slot, examples(slot))
    crew.gradients(0)
    for model in crew.models:
        assert all(p.grad is not None and p.grad.is_contiguous() for p in model.parameters())


def test_a_new_life_begins_with_the_initial_values_and_no_step():
    crew = diverse_crew(2)
    crew.prepare(1, examples(0))
    crew.begin_again(1)
    assert not crew.is_in_flight(1)
    for mine, first in zip(crew.models[1].parameters(), initial().parameters(), strict=True):
        assert torch.equal(mine, first)


def test_the_score_is_the_mean_over_all_targets():
    model, batch = initial(), examples(0, 70)
    logits = model(input_ids=batch.inputs).logits.flatten(0, -2).detach()
    loss, accuracy = score(model, batch)
    assert abs(loss - float(cross_entropy(logits, batch.targets.flatten()))) < 1e-5
    right = int((logits.argmax(-1) == batch.targets.flatten()).sum())
    assert accuracy == right / batch.targets.numel()
    assert score(model, batch, 2)[0] != loss
