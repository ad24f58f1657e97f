"""Images: the comparison of `parity` at M = 4 on a classifier, with its accuracy."""

from __future__ import annotations

from atoll.sim.lab.experiments.parity import Comparison
from atoll.sim.lab.report import FINE

__all__ = ["VISION"]

VISION = Comparison(
    name="vision",
    about="an image classifier: Data-Parallel, Streaming and Decoupled at M=4, loss and accuracy",
    task="vision",
    methods=("streaming",),
    counts=(4,),
    fine=2 * FINE,  # two runs of one seed end further apart than on text
)
