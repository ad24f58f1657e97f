"""A fleet file is read as it was meant, or refused with what to write instead."""

from __future__ import annotations

import pytest

from atoll.errors import ConfigError
from atoll.sim.plan.fleet_file import parse_fleet, read_fleet
from atoll.sim.plan.keys import KEYS, example
from atoll.sim.units import DAY, YEAR
from tests.unit.sim.plan.fleets import fleet, island, text


def test_amounts_are_read_as_people_write_them():
    spec = fleet(
        island("a", chips="2k", mtbi="30d", up="2.5Gbit/s", down="10Gbit/s", rtt="80ms", count=3),
        params="12B",
        batch="4M",
    )
    (site,) = spec.sites
    assert spec.model.params == 12_000_000_000
    assert (site.chips, site.count, site.mtbi_s, site.rtt_s) == (2000, 3, 30 * DAY, 0.08)
    assert site.link_bits_per_s == 2.5e9
    assert site.tokens_per_s == pytest.approx(200e12 / (6 * 12e9))


def test_what_is_not_said_has_a_usual_value():
    spec = fleet(island("a", price=None, rtt=None))
    assert spec.model.tokens == 20 * 7e9
    (site,) = spec.sites
    assert (site.mtbi_s, site.rtt_s, site.price, site.down_bits_per_s) == (YEAR, 0.0, 0.0, site.up_bits_per_s)
    assert not spec.has_prices


def test_the_batch_follows_from_the_time_of_a_step():
    spec = fleet(island("a", flops=None, tokens_per_s=1000), island("b"), batch=None, step="2s")
    assert spec.model.batch == pytest.approx(2 * spec.rate)


def test_a_mixture_of_experts_is_as_fast_as_its_active_part():
    dense, sparse = fleet(island("a")), fleet(island("a"), flops_per_token="6B")
    assert sparse.rate == pytest.approx(7 * dense.rate)


def test_shocks_and_the_syncer_are_read():
    more = """
[[shock]]
name = "push"
every = "90d"
share = 1.0
returns = "20min"
scope = "fleet"
[syncer]
rate = "10Gbit/s"
price = 3
outage_every = "30d"
outage = "5min"
"""
    spec = fleet(island("a"), more=more)
    assert (spec.shocks[0].scope, spec.shocks[0].every_s) == ("fleet", 90 * DAY)
    assert spec.syncer.outages is not None
    assert (spec.syncer.bits_per_s, spec.syncer.outages.down.mean_s) == (10e9, 300.0)


def test_a_trace_is_found_beside_the_file_and_counts_what_is_granted(tmp_path):
    (tmp_path / "spot.csv").write_text("time_s,learner,chips\n0,a,128\n100,a,64\n200,a,0\n")
    path = tmp_path / "fleet.toml"
    path.write_text(text(island("a", trace="spot.csv", price=2.0)))
    (site,) = read_fleet(path).sites
    assert site.granted == pytest.approx(0.75)
    assert site.price_per_h == pytest.approx(0.75 * 128 * 2.0)


def test_the_example_names_every_key_and_can_be_read():
    shown = example()
    for keys in KEYS.values():
        for key, (value, about) in keys.items():
            assert f"{key} = {value}" in shown
            assert about in shown
    assert parse_fleet(shown).sites[0].name == "iowa"


def test_an_island_may_say_that_it_is_not_elastic():
    spec = fleet(island("a", elastic=False, outage="3min"), island("b"))
    rigid, usual = (site.pauses for site in spec.sites)
    assert (rigid.elastic, rigid.outage_s) == (False, 180.0)
    assert usual.elastic


REFUSED = {
    "an outage of an elastic island": (text(island("a", outage="3min")), "is elastic and gives outage"),
    "a rigid island that shrinks": (
        text(island("a", elastic=False, shrink="3s")),
        "is not elastic and gives shrink",
    ),
    "a word for a flag": (text(island("a", elastic="no")), "Write elastic = true"),
    "more parameters than can be": (text(island("a"), params="1e300"), "model: params is 1e+300"),
    "a batch larger than can be": (text(island("a"), batch="1e300"), "model: batch is 1e+300"),
    "a step of less than a token": (text(island("a"), batch=None, step="1e-30s"), "A batch has at least one"),
    "a price beyond reason": (text(island("a", price="1e300")), "island a: price is 1e+300"),
    "a link beyond reason": (text(island("a", up="1e30Gbit/s")), "island a: up is 1e+39"),
    "a speed beyond reason": (text(island("a", flops=None, tokens_per_s=1e300)), "tokens_per_s is 1e+300"),
    "more chips than can be": (text(island("a", chips="1B", count=2)), "The fleet has 2B chips"),
    "no islands": (text(), "has no islands"),
    "an empty list of islands": ("island = []\n" + text(), "has no islands"),
    "no model": (island("a"), "has no [model]"),
    "an unknown table": (text(island("a"), more="[sincer]\n"), "Did you mean syncer?"),
    "an unknown key": (text(island("a", chip=3)), "Did you mean chips?"),
    "an unknown key of the model": (text(island("a"), parms="7B"), "Did you mean params?"),
    "single brackets": (text(more='[island]\nname = "a"\n'), "Write [[island]]"),
    "a model that is no table": ("model = 3\n" + island("a"), "model is not a table"),
    "no name": (text("[[island]]\nchips = 3\n"), "island 1 has no name"),
    "no chips": (text(island("a", chips=None)), "island a has no chips"),
    "no speed": (text(island("a", flops=None)), "has no flops (or tokens_per_s)"),
    "two speeds": (text(island("a", tokens_per_s=5)), "gives both flops and tokens_per_s"),
    "batch and step": (text(island("a"), step="1s"), "gives both batch and step"),
    "neither batch nor step": (text(island("a"), batch=None), "has no batch (or step)"),
    "negative chips": (text(island("a", chips=-4)), "island a: chips is -4"),
    "half a chip": (text(island("a", chips=1.5)), "It counts whole things"),
    "an MTBI of zero": (text(island("a", mtbi=0)), "island a: mtbi is 0"),
    "a link of zero": (text(island("a", up="0Gbit/s")), "island a: up is 0"),
    "a link in bytes": (text(island("a", up="3GB/s")), "cannot be read"),
    "an endless round trip": (text(island("a", rtt="inf")), "endless"),
    "a flag for a number": (text(island("a", chips=True)), "neither a number nor an amount"),
    "a negative price": (text(island("a", price=-1)), "island a: price is -1"),
    "two of one name": (text(island("a"), island("a")), "Two islands are called a"),
    "too many": (text(island("a", count=1000)), "The fleet has 1000 islands"),
    "a model that does not fit": (text(island("a", memory_gb=0.5)), "does not fit on island a"),
    "fewer tokens than a batch": (text(island("a"), tokens="1M"), "less than one batch"),
    "a shock of more than all": (
        text(island("a"), more='[[shock]]\nname = "x"\nevery = "1d"\nshare = 2\nreturns = "1h"\n'),
        "takes 2.0 of a learner",
    ),
    "a shock of an unknown scope": (
        text(
            island("a"),
            more='[[shock]]\nname = "x"\nevery = "1d"\nshare = 1\nreturns = "1h"\nscope = "rack"\n',
        ),
        "has scope 'rack'",
    ),
    "an outage without a rate": (text(island("a"), more='[syncer]\noutage = "1h"\n'), "has no outage_every"),
    "no TOML": ("[model\n", "is not valid TOML"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_meant_is_refused_in_three_sentences(case):
    source, words = REFUSED[case]
    with pytest.raises(ConfigError) as refusal:
        parse_fleet(source)
    assert words in str(refusal.value)
    assert refusal.value.so_what
    assert refusal.value.now_what


def test_a_missing_file_and_a_trace_without_the_island_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="fleet file"):
        read_fleet(tmp_path / "none.toml")
    (tmp_path / "spot.csv").write_text("time_s,learner,chips\n0,b,128\n")
    path = tmp_path / "fleet.toml"
    path.write_text(text(island("a", trace="spot.csv")))
    with pytest.raises(ConfigError, match="no row for a"):
        read_fleet(path)
    (tmp_path / "spot.csv").write_text("time_s,learner,chips\n0,a,0\n")
    with pytest.raises(ConfigError, match="grants a no chip"):
        read_fleet(path)
