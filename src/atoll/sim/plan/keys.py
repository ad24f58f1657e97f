"""Every key of a fleet file: a value as one would write it, and what it means. The only list of them.

The reader refuses what is not in it, and `atoll plan --example` prints it as a fleet file that works.
"""

from __future__ import annotations

__all__ = ["EITHER", "KEYS", "REPEATED", "example"]

REPEATED = ("island", "shock")
"""Tables that may stand several times, in double brackets."""

EITHER = {"step": "batch", "tokens_per_s": "flops"}
"""Keys that say the same in another way: one of the two is given."""

KEYS: dict[str, dict[str, tuple[str, str]]] = {
    "model": {
        "params": ('"12B"', "parameters; all of them travel"),
        "tokens": ('"240B"', "tokens that lock-step would train on; without it 20 for each parameter"),
        "batch": ('"4M"', "tokens in one step of the whole fleet"),
        "step": ('"2.8s"', "instead of batch: seconds of compute in one step of the whole fleet"),
        "flops_per_token": ('"72B"', "without it 6 for each parameter; less for a mixture of experts"),
        "bytes_per_param": ("16", "memory of weights, gradients and AdamW; for the check with memory_gb"),
    },
    "island": {
        "name": ('"iowa"', "as the table calls it, and as its learner may be called"),
        "chips": ("128", "that share a fast interconnect"),
        "count": ("2", "how many such islands there are"),
        "flops": ('"200T"', "useful FLOP/s of one chip: its peak times the utilisation you measure"),
        "tokens_per_s": ("2800", "instead of flops: measured tokens/s of one chip on this model"),
        "mtbi": ('"1y"', "mean time between interruptions of one chip; inf: never"),
        "slice": ("8", "chips that leave and return together when one fails"),
        "shrink": ('"17.5s"', "standing still when a slice leaves"),
        "grow": ('"13s"', "standing still when a slice returns"),
        "returns": ('"70s"', "mean time until a lost slice, or a spare, is back"),
        "elastic": ("true", "false: it cannot shrink, and every failure stops all of it"),
        "outage": ('"82s"', "with elastic = false: from a failure until it steps again"),
        "price": ("2.5", "of one chip for one hour, in any one currency"),
        "up": ('"2Gbit/s"', "link to the syncer"),
        "down": ('"2Gbit/s"', "link from the syncer; without it the same as up"),
        "rtt": ('"30ms"', "there and back"),
        "memory_gb": ("80", "of one chip; without it nothing is checked"),
        "trace": ('"spot.csv"', "chips that a spot market grants: time_s,learner,chips; learner = name"),
    },
    "shock": {
        "name": ('"power"', "failures that come together"),
        "every": ('"90d"', "mean time between two: per island, or in the fleet"),
        "share": ("0.5", "of an island's slices that are lost"),
        "returns": ('"1h"', "mean time until they are back"),
        "scope": (
            '"learner"',
            "learner: each island on its own, in however many learners; fleet: all at once",
        ),
    },
    "syncer": {
        "rate": ('"10Gbit/s"', "its own link, in each direction; without it no limit"),
        "price": ("1.2", "for one hour"),
        "outage_every": ('"30d"', "mean time between two outages; without it there are none"),
        "outage": ('"5min"', "mean length of one"),
    },
}

_LEFT_OUT = {("model", "step"), ("island", "tokens_per_s"), ("island", "outage"), ("island", "trace")}


def example() -> str:
    """A fleet file with every key: one island repeated, the keys that exclude another as comments."""
    lines = ["# Every key of a fleet file. What is commented out is another way to say it, or needs a file."]
    for table, keys in KEYS.items():
        lines += ["", f"[[{table}]]" if table in REPEATED else f"[{table}]"]
        for key, (value, about) in keys.items():
            hidden = "# " if (table, key) in _LEFT_OUT else ""
            lines.append(f"{f'{hidden}{key} = {value}':<28} # {about}")
    return "\n".join(lines) + "\n"
