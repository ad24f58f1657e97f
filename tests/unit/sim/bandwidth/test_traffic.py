"""What may be asked about, and what is refused."""

from __future__ import annotations

import math

import pytest

from atoll.errors import ConfigError
from atoll.sim.bandwidth.traffic import Traffic


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"params": -1e9}, "params is -1000000000.0"),
        ({"params": math.inf}, "params is inf"),
        ({"params": 1e16}, "No model is that large"),
        ({"sites": 4097}, "Give at most 4096"),
        ({"interval_steps": 10_001}, "interval_steps is 10,001"),
        ({"interval_steps": 10**9, "fragments": 10**9}, "Give at most 10,000"),
        ({"step_s": 0.0}, "step_s is 0.0"),
        ({"bits": 0}, "bits is 0"),
        ({"bits": 16e9}, "bits is 1.6e"),
        ({"rtt_s": -0.1}, "rtt_s is -0.1"),
        ({"sites": 1}, "a ring of one carries nothing"),
        ({"interval_steps": 0}, "interval_steps is 0"),
        ({"fragments": 0}, "fragments is 0"),
        ({"interval_steps": 10}, "Set fragments to 10 or less"),
        ({"overlap_steps": -1}, "overlap_steps is -1"),
        ({"overlap_steps": 25}, "after it is due again"),
    ],
)
def test_nonsense_is_refused_in_a_sentence(change, what):
    with pytest.raises(ConfigError, match=what):
        Traffic(**({"params": 1e9, "step_s": 1.0} | change))


def test_a_ring_of_two_sends_the_payload_once():
    traffic = Traffic(params=1e9, step_s=1.0, bits=16, sites=2, rtt_s=0.05)
    assert traffic.ring_bits == traffic.model_bits == 16e9
    assert traffic.ring_latency_s == 0.05


def test_a_large_ring_sends_it_almost_twice_and_takes_long():
    traffic = Traffic(params=1e9, step_s=1.0, bits=4, sites=8, rtt_s=0.05)
    assert traffic.ring_bits == 1.75 * 4e9
    assert traffic.ring_latency_s == pytest.approx(0.35)
    assert traffic.steps_between == 1.0
