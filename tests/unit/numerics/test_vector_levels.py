import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("vector_levels.py")
KNOWN = ["DEFAULT", "AVX2", "AVX512"]
BEST = torch.backends.cpu.get_cpu_capability()
# A level that the processor does not have would kill the process.
LEVELS = KNOWN[: KNOWN.index(BEST) + 1] if BEST in KNOWN else ["DEFAULT"]


@pytest.fixture(scope="module")
def results():
    runs = {
        level: subprocess.Popen(
            [sys.executable, str(SCRIPT)],
            env=os.environ | {"ATEN_CPU_CAPABILITY": level.lower(), "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for level in LEVELS
    }
    return {level: json.loads(run.communicate(timeout=120)[0]) for level, run in runs.items()}


def test_bits_do_not_depend_on_the_vector_level(results):
    found = {level: result["found"] for level, result in results.items()}
    for key, expected in found["DEFAULT"].items():
        for level in LEVELS[1:]:
            assert found[level][key] == expected, f"{key} differs between DEFAULT and {level}"


def test_more_than_one_level_was_really_compared(results):
    levels = {result["level"] for result in results.values()}
    if len(levels) == 1:
        pytest.skip(f"this processor has one vector level only: {levels}")
    assert len(levels) >= 2
