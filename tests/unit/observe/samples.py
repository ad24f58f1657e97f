"""Statuses as the syncer makes them, made by hand: a calm one, a bad day, a crowd, and the very first."""

from __future__ import annotations

from typing import Any

from atoll.observe.history import History
from atoll.observe.phases import Kill, kill_tables
from atoll.observe.summary import Summary

Status = dict[str, Any]


def note(at_s: float, kind: str, who: str, reason: str = "") -> Status:
    return {"at_s": at_s, "kind": kind, "who": who, "reason": reason}


def detail(name: str, state: str = "training", **changed: Any) -> Status:
    """One learner that does well, but for what is changed."""
    found: Status = {
        "name": name, "state": state, "incarnation": 1, "lag_steps": 0, "clock": 328, "steps": 328,
        "tokens": 671744, "tokens_per_s": 10312.4, "loss": 2.3141, "step_ms": 99.12, "held_ms": 0.118,
        "held_max_ms": 1.94, "cpu_ms": 96.4, "stall": 0.0012, "offers": 131, "merged_offers": 127, "late": 3,
        "rejected": 1, "shard": 0, "address": "127.0.0.1:40112", "device": "cpu", "heard_s_ago": 0.2,
    }  # fmt: skip
    return found | changed


def bad_day() -> Status:
    """40 % into a run of four: one was killed and heals, one runs at half speed."""
    return {
        "run": "gemma-tiny", "algorithm": "decoupled", "state": "training", "epoch": 1, "t": 328,
        "budget_ticks": 800, "budget_tokens": None, "progress": 0.41, "merges": 1312,
        "merged_tokens": 2103552, "tokens": 2298112, "learner_steps": 1122, "alive": 4, "participating": 3,
        "merged": 3, "learners": 4,
        "goodput": 0.962, "participation": 0.914, "stall_fraction": 0.0011, "bytes_up": 12_412_000,
        "bytes_down": 49_100_000, "bits_per_param": {"up": 4.25, "down": 4.25}, "params": 213_504,
        "fragments": 8, "interval_steps": 24, "quorum": 2, "tokens_per_s": 35120.0, "loss": 2.3187,
        "eta_s": 72.4,
        "durability": {"mode": "merge", "crash_cost": "nothing that a learner may have adopted is lost"},
        "problems": [], "uptime_s": 48.3, "unit": "tokens",
        "learner_details": [
            detail("learner-0"),
            detail("learner-1", "healing", incarnation=2, lag_steps=9, steps=141, tokens=288768, shard=1,
                   tokens_per_s=9870.0, loss=2.8013, held_ms=0.4, address="127.0.0.1:40980"),
            detail("learner-2", shard=2, loss=2.3055, address="127.0.0.1:40116"),
            detail("learner-3", lag_steps=164, steps=164, clock=164, tokens=335872, tokens_per_s=5127.0,
                   step_ms=199.7, cpu_ms=97.0, loss=2.4102, shard=3, address="127.0.0.1:40118"),
        ],
        "notes": [
            *(note(3.1, "admitted", f"learner-{i}", "incarnation 1") for i in range(4)),
            note(3.4, "quorum", "", "4 of 2 healed learners connected"),
            note(31.0, "killed", "learner-1"),
            note(36.2, "lost", "learner-1", "silent for 5.1 s"),
            note(38.0, "dropped", "learner-3", "late: no body in time"),
            note(38.9, "dropped", "learner-3", "late: no body in time"),
            note(41.5, "restarted", "learner-1"),
            note(45.0, "admitted", "learner-1", "incarnation 2"),
        ],
    }  # fmt: skip


def first_moment() -> Status:
    """Nobody has joined: every number that has to be measured is unknown."""
    unknown = dict.fromkeys(
        ("goodput", "participation", "stall_fraction", "tokens_per_s", "loss", "eta_s", "params")
    )
    zero = dict.fromkeys(
        ("t", "merges", "merged_tokens", "tokens", "learner_steps", "alive", "participating", "merged"), 0
    )
    nobody: Status = {"learners": 4, "learner_details": [], "notes": [], "uptime_s": 0.4, "progress": 0.0}
    bits = {"bits_per_param": {"up": None, "down": None}, "bytes_up": 0, "bytes_down": 0}
    return {**bad_day(), **unknown, **zero, **nobody, **bits, "state": "waiting"}


def crowd() -> Status:
    """Two hundred learners, a few of them in trouble, and an operator who should know."""
    odd = {7: "healing", 61: "lost", 100: "lost", 150: "joining", 199: "healing"}
    details = [detail(f"learner-{i}", odd.get(i, "training"), shard=i) for i in range(200)]
    names = [f"learner-{i}" for i in range(200)]
    admitted = [note(9.0, "admitted", name, "incarnation 1") for name in names]
    return {
        **bad_day(), "run": "crowd", "learners": 200, "alive": 198, "participating": 195, "merged": 190,
        "learner_details": details, "notes": admitted[-50:],
        "problems": ["the disk is full: nothing is committed until space returns"],
    }  # fmt: skip


def history(status: Status) -> History:
    """A minute and a half of falling loss, a dip in speed, and one learner gone for a while."""
    kept = History()
    for second in range(90):
        is_down = 55 <= second < 70
        kept.add(
            float(second),
            {
                "loss": 2.3 + 3.2 / (1 + second / 8),
                "tokens_per_s": (26_000.0 if is_down else 35_000.0) * min(1.0, second / 6),
                "alive": 3 if is_down else 4,
                "progress": status.get("progress", 0.0) * second / 90,
            },
        )
    return kept


def samples(survivor_rate: float = 10.0) -> list[Status]:
    """Metrics of 100 s, one a second: learner-1 is dead from 40 to 47 and healed at 52."""
    found = []
    for second in range(101):
        steps = {"learner-0": survivor_rate * second, "learner-2": survivor_rate * second / 2}
        alive = second < 40 or second >= 47
        if alive:
            steps["learner-1"] = survivor_rate * (second if second < 40 else second - 47)
        details = [
            {"name": name, "steps": num, "held_total_ms": 0.12 * num, "cpu_total_ms": 95.0 * num}
            for name, num in steps.items()
        ]
        found.append({"at_s": float(second), "learner_details": details})
    return found


KILL = Kill("learner-1", killed_s=40.0, healed_s=52.0, event="learner-1 killed at 40 %")


def summary() -> Summary:
    """The end of the bad day."""
    status = {**bad_day(), "state": "finished", "t": 800, "progress": 1.0, "eta_s": 0.0}
    return Summary(
        status=status,
        run_dir="runs/gemma-tiny",
        heldout_start=5.5461,
        heldout_end=2.2874,
        wall_s=101.4,
        kills=tuple(kill_tables(samples(), [KILL])),
    )
