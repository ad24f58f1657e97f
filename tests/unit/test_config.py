"""Every default works, every setting is documented, and every one reaches those who need it."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path
from typing import Any

import pytest

import atoll.config
from atoll.config import (
    CODECS,
    BudgetConfig,
    CodecConfig,
    DataConfig,
    DurabilityConfig,
    GuardConfig,
    HealConfig,
    NetworkConfig,
    OuterConfig,
    RunConfig,
    SecurityConfig,
    SyncConfig,
    TapeConfig,
)
from atoll.core.params import SECOND, RunParams
from atoll.errors import ConfigError

SECTIONS: dict[str, type[Any]] = {
    "sync": SyncConfig,
    "outer": OuterConfig,
    "codec": CodecConfig,
    "budget": BudgetConfig,
    "durability": DurabilityConfig,
    "guard": GuardConfig,
    "heal": HealConfig,
    "tape": TapeConfig,
    "security": SecurityConfig,
    "network": NetworkConfig,
    "data": DataConfig,
}

EVERYTHING = RunConfig(
    sync=SyncConfig(
        algorithm="streaming",
        num_learners=8,
        num_fragments=6,
        interval_steps=30,
        overlap_steps=3,
        min_quorum=2,
        grace_rule="slack",
        grace_fraction=0.0,
        grace_max_steps=2.5,
        averaging=1.0,
        adopt="blend",
        blend_alpha=0.1,
        merge_rule="rda",
        heartbeat_s=0.1,
        alive_s=1 / 3,
        retry_s=1e-3,
        live_s=1e9,
    ),
    outer=OuterConfig(learning_rate=1e-7, momentum=0.0, momentum_warmup=0.0, momentum_cooldown=1.0),
    codec=CodecConfig(up="int4", down="f32", error_feedback=False),
    budget=BudgetConfig(ticks=10, tokens=10**15, drain_s=2.5),
    durability=DurabilityConfig(mode="snapshot", snapshot_every=1, keep="all"),
    guard=GuardConfig(
        norm_gate=0.0,
        on_large="clip",
        max_share=0.4,
        max_step_tokens=1 << 20,
        strikes=0,
        quarantine_steps=7,
    ),
    heal=HealConfig(moments="peer", max_age_steps=0, warmup_steps=9, save_every_steps=0),
    tape=TapeConfig(keep_offers=True, keep_mb=1),
    security=SecurityConfig(tls=True, mtls=True),
    network=NetworkConfig(data_connections=16, piece_bytes=4096, spool_mb=0, max_learners=8),
    data=DataConfig(num_shards=12, seed=2**63 - 1, hand_on_s=0.5),
)


def test_the_default_config_fills_the_default_params():
    assert RunConfig().params() == RunParams()


def test_every_setting_of_the_protocol_reaches_the_params():
    params = EVERYTHING.params((5,) * 6, publish_bytes=(6,) * 6, full_bytes=(7,) * 6)
    assert params == RunParams(
        algorithm="streaming",
        num_fragments=6,
        interval_steps=30,
        overlap_steps=3,
        min_quorum=2,
        grace_rule="slack",
        grace_fraction=0.0,
        grace_max_steps=2.5,
        averaging=1.0,
        adopt="blend",
        durability="snapshot",
        snapshot_every=1,
        budget_ticks=10,
        budget_tokens=10**15,
        momentum_warmup=0.0,
        momentum_cooldown=1.0,
        fragment_bytes=(5,) * 6,
        publish_bytes=(6,) * 6,
        full_bytes=(7,) * 6,
        norm_gate=0.0,
        on_large="clip",
        max_share=0.4,
        max_step_tokens=1 << 20,
        strikes=0,
        quarantine_steps=7,
        num_shards=12,
        hand_on_ns=SECOND // 2,
        donates=True,
        heartbeat_ns=SECOND // 10,
        alive_ns=333_333_333,
        retry_ns=1_000_000,
        drain_ns=5 * SECOND // 2,
        live_ns=10**9 * SECOND,
    )
    untouched = [
        f.name
        for f in dataclasses.fields(RunParams)
        if getattr(params, f.name) == getattr(RunParams(), f.name)
    ]
    assert untouched == [], "the config above must change every parameter, or this test proves nothing"


@pytest.mark.parametrize("sizes", ["fragment_bytes", "publish_bytes", "full_bytes"])
def test_params_refuse_a_model_with_another_number_of_fragments(sizes: str):
    with pytest.raises(ConfigError) as caught:
        RunConfig().params(**{sizes: (1, 2, 3)})
    assert str(caught.value) == (
        "The model has 3 fragments but sync.num_fragments is 24.\n"
        "Rounds would open on fragments that do not exist, or leave some out.\n"
        "Set sync.num_fragments to 3, or partition the model again."
    )


def test_a_config_is_frozen_and_keyword_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RunConfig().sync.min_quorum = 2
    with pytest.raises(TypeError):
        SyncConfig("decoupled")


def test_every_field_has_a_docstring_below_it():
    classes = [
        node
        for file in sorted(Path(atoll.config.__file__).parent.glob("*.py"))
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    ]
    assert {node.name for node in classes} == {"RunConfig", *(kind.__name__ for kind in SECTIONS.values())}
    bare = []
    for node in classes:
        for statement, below in zip(node.body, [*node.body[1:], None], strict=True):
            documented = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            if isinstance(statement, ast.AnnAssign) and not documented:
                bare.append(f"{node.name}.{ast.unparse(statement.target)}")
    assert bare == []


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_goes_both_ways(codec: Any):
    assert CodecConfig(up=codec, down=codec).up == codec


def test_diloco_works_with_one_fragment_and_otherwise_defaults():
    assert RunConfig(sync=SyncConfig(algorithm="diloco", num_fragments=1)).params().waits


def test_a_whole_number_stands_for_a_float():
    sync = SyncConfig(heartbeat_s=2, live_s=9)
    assert (sync.heartbeat_s, sync.live_s) == (2.0, 9.0)
    assert isinstance(sync.heartbeat_s, float)


def test_connections_are_encrypted_unless_somebody_asks_otherwise():
    assert RunConfig().security == SecurityConfig(tls=True, mtls=False)
    assert not SecurityConfig(tls=False).tls


def test_the_runtime_has_these_defaults():
    assert RunConfig().network == NetworkConfig(
        data_connections=4, piece_bytes=1 << 20, spool_mb=512, max_learners=1024
    )
    assert RunConfig().data == DataConfig(num_shards=0, seed=0)


def test_the_limits_of_the_network_themselves_are_allowed():
    for connections, piece in [(1, 4096), (16, 16 << 20)]:
        network = NetworkConfig(data_connections=connections, piece_bytes=piece)
        assert (network.data_connections, network.piece_bytes) == (connections, piece)


@pytest.mark.parametrize(
    ("num_learners", "num_shards", "shards"),
    [(None, 0, 64), (4, 0, 4), (None, 7, 7), (4, 7, 7), (4, 4, 4)],
)
def test_shards_are_as_many_as_set_or_as_learners_or_sixty_four(
    num_learners: int | None, num_shards: int, shards: int
):
    config = RunConfig(sync=SyncConfig(num_learners=num_learners), data=DataConfig(num_shards=num_shards))
    assert config.shards == shards


def test_no_finite_wait_is_too_long_for_nanoseconds():
    assert RunConfig(sync=SyncConfig(live_s=1e308)).params().live_ns > 10**316
