"""The lab: real gradients in virtual time, paired comparisons, an experiment for every claim.

A `Cell` is one training run, named by everything its bits follow from (`cell`). `train` runs it: learners
whose steps are real torch steps, driven by the production core, codecs and merge, in virtual time. A `Row` is
what came of it. An experiment (`experiments`) asks for cells, stage by stage, and turns their rows into a
`Report` of tables, pictures and claims; a claim is a paired difference with its interval, held or not.
"""
