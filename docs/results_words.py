"""The words of docs/results.md: what is asked, what is planned, and what we make of what came out.

Figures in the remarks are typed by hand, from the tables of the page; `docs/results.py` makes the rest. A
paragraph may be broken anywhere: it becomes one line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = [
    "DEFAULTS", "FAIRNESS", "MACHINE", "METHOD", "OPENING", "REMARKS", "SCORE", "SECTIONS", "Planned",
    "Scored",
]  # fmt: skip

MACHINE = "Measured on virtual machines with 2 cores (AMD EPYC, Intel Xeon; 60 to 180 GFlop/s each), no GPU."
"""On what all of it was run, in a sentence. Empty until it was."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One section of the page: what is asked, and the runs that are to answer it, as (size, seeds)."""

    question: str
    runs: tuple[tuple[str, int], ...] = (("tiny", 5),)
    is_tuning: bool = False
    """Whether it looks for settings that others rest on: it stands behind them, with what is fair."""


SECTIONS: Mapping[str, Planned] = {
    "parity": Planned(
        "How far are DiLoCo, Streaming DiLoCo and Decoupled DiLoCo from Data-Parallel at M = 2, 4 and 8, and "
        "what does asynchrony add?",
        (("tiny", 5), ("small", 3)),
    ),
    "scaling": Planned(
        "Does the gap to Data-Parallel shrink with the size of the model, as fast as the published one?",
        (("small", 3),),
    ),
    "moe": Planned("Is asynchrony free for a mixture of experts?"),
    "vision": Planned("Is asynchrony free for images?"),
    "failures": Planned(
        "What do the failures of 1.2M chips cost in goodput and loss, over 8 learners or in lock-step?"
    ),
    "mixed-hardware": Planned(
        "Half of the learners are slower: by 18 %, by 2x, by 4x. What do quorum and grace window make of it?"
    ),
    "grace": Planned(
        "Some answer late. How long should a round wait: as the paper does, longer, or for those who are "
        "worth it?"
    ),
    "scavenging": Planned(
        "Extra learners come for half of the work. How much time is saved, and at what loss?"
    ),
    "non-iid": Planned(
        "Each learner sees another part of the library. What does the whole library say of it?"
    ),
    "learners": Planned("How does the loss change from 1 learner to 16, at equal tokens?"),
    "bits": Planned("How few bits can offers and publishes have, with and without error feedback?"),
    "merge-rule": Planned("Mean, RDA, or RDA with the mean on embeddings?"),
    "adopt": Planned("Overwrite, blend or rebase when a publish arrives?"),
    "outer": Planned("Which eta and mu for H = 4, 24 and 96?"),
    "closing-the-gap": Planned(
        "Which ideas bring the loss nearer to Data-Parallel, at equal tokens and about equal bytes?"
    ),
    "sweep": Planned(
        "Which learning rate, batch, eta and mu suit each method best? Every later comparison rests on it.",
        (("tiny", 1),),
        is_tuning=True,
    ),
    "rates": Planned(
        "Does the learning rate carry over to other M, sizes and tasks? Three around the transferred best "
        "are tried.",
        (("0.05M", 1), ("tiny", 1), ("0.2M", 1), ("0.4M", 1), ("small", 1)),
        is_tuning=True,
    ),
    "batches": Planned(
        "Which batch suits each method at other sizes? Half and twice the one that follows from tiny are "
        "tried.",
        (("0.05M", 1), ("0.2M", 1), ("0.4M", 1), ("small", 1)),
        is_tuning=True,
    ),
}
"""In the order of the page: quality, the world, the settings, and at last what all of it rests on."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One line of the table that stands first."""

    asked: str
    experiment: str
    claim: str
    """A part of the claim's text that no other claim of the experiment has."""
    size: str = "tiny"


SCORE: tuple[Scored, ...] = (
    Scored("Asynchrony costs, text, over M = 2, 4, 8", "parity", "the mean over M"),
    Scored("the same, M = 8 alone", "parity", "text, M=8: asynchrony"),
    Scored("the same, a mixture of experts, M = 4", "moe", "asynchrony is free"),
    Scored("the same, images, M = 4", "vision", "asynchrony is free"),
    Scored("the same, half of 8 learners 18 % slower", "mixed-hardware", "18 % slower: asynchrony is free"),
    Scored(
        "Gap to tuned Data-Parallel, M = 2 (limit: the published curve, extended)", "parity", "M=2: the gap"
    ),
    Scored("the same, M = 4", "parity", "M=4: the gap"),
    Scored("the same, M = 8", "parity", "M=8: the gap"),
    Scored("Failures of 1.2M chips: loss", "failures", "Decoupled, pauses: the loss"),
    Scored("the same, every pause a death and optimizer state lost", "failures", "moments lost: the loss"),
    Scored("Goodput, every pause a death: points below the fleet model", "failures", "deaths: goodput"),
    Scored(
        "Half of 8 learners 18 % slower: K = 1 with grace against K = 8",
        "mixed-hardware",
        "18 % slower: the loss",
    ),
    Scored("Our grace window against the paper's, steps vary by half", "grace", "steps vary by 50 %"),
    Scored(
        "Extra learners, +50 %, for half of the work: loss", "scavenging", "+50 % for half of the work: loss"
    ),
    Scored("Four bits both ways against bf16", "bits", "int4 both ways"),
    Scored("Two bits without error feedback lose to bf16, at least", "bits", "2 bits without error feedback"),
    Scored("Our defaults against plain averages, H = 4", "outer", "H = 4"),
    Scored("Our defaults against the best fixed eta and mu, H = 24", "outer", "H = 24"),
    Scored("Share of the gap closed by the best idea, M = 4, at least", "closing-the-gap", "M = 4 is halved"),
    Scored("the same, M = 8", "closing-the-gap", "M = 8 is halved"),
)
"""Won and lost alike; all figures come from the claims."""

REMARKS: Mapping[str, str] = {
    "merge-rule": """
The paper merges by RDA, with the mean on embeddings. Here the mean did better than that at M = 8, by 1.3 %
(0.2 to 2.4), and by 1.7 % at M = 4, which is not for sure; so it is our default. RDA on embeddings too is
not told apart from the mean at M = 8 (+0.1 %, -0.8 to +1.0). In three of four cases the best rate was at the
edge of what was tried. The choice was made on these very seeds, and at 0.1M parameters. At M = 2 and 16
single runs at the seed for tuning went the other way (1.578 and 2.138 by the mean, a little less by RDA,
whose rows were not kept). The paper says that RDA needs less tuning when M changes; these tables do not
show it.
""",
    "parity": """
By our defaults two learners end below Data-Parallel and four within 2 % of it. Part of that is a calm
end, which momentum that falls gives them: against Data-Parallel with the mean of its last tenth, two
learners are level with it (-0.4 to +0.6 %) and four 1.0 to 2.6 % above. Against constant momentum, each
at its own best learning rate, our defaults are 4 % better at M = 2 and 3 % at M = 4 and 8;
closing-the-gap says what the schedule of momentum does alone. With our defaults' settings DiLoCo and
Streaming gain about as much at M = 2 and 4; at M = 8 DiLoCo gains 2 % and Streaming, whose eta changes too,
6 %. At M = 8 the gap is still 7 to 10 %: each learner takes one window a step, and there are half as many
steps as at M = 4. Over all M the price of asynchrony is +0.16 % (-0.01 to +0.34): below half a percent,
perhaps nothing. At M = 8 alone, where two runs of one seed differ by a full percent, it may be anything from
-0.08 to +0.86 %. With the paper's grace window, on the same seeds, it was +0.25 % (+0.06 to +0.45), and one
offer in 140 came too late; now hardly one does. The two windows themselves are not told apart in this calm
fleet (-0.09 %, -0.24 to +0.07). Decoupled adopts a quarter of a step later than Streaming, whose learners
fall into step by waiting; whether that is what is left we do not know.
Data-Parallel is at batch 1, which no method with learners can have.
""",
    "rates": """
Where several rates are near the best the choice among them is luck: two runs that differ in little more than
rounding end up to half a percent apart. A first look at size must be read with that in mind: one seed, the
one that chose the rates, and each figure the least of four to ten. Against the best run of Data-Parallel,
which has twice (0.4M) and four times the batch (0.8M, `small`), our defaults end 0.9 % below at M = 2, 0.1 %
above at M = 4 and 1.6 % above at M = 8 at 0.4M, and 1.9 % below, 0.6 % below and 1.2 % above at 0.8M, where
the neighbours of M = 8's best rate are 1.6 % worse, which must be luck. The best rates of M = 8 lie six and
seven steps below those that were carried from `tiny`. At 0.2M a first search for it had ended between two
neighbours; five steps below it did 0.5 % better.
""",
    "batches": """
The law that carries the batch from `tiny` is about right: nobody gains more than 0.6 % by another batch. One
twice as large costs 3 % at M = 4 and 7 % at M = 8 at 0.2M, and 0.1 and 1.5 % at 0.4M. Data-Parallel did best
at twice the batch of the law, at all three sizes. One seed, so half a percent may be luck.
At 0.8M only Data-Parallel was tried at other batches so far: 1.1275, 1.1268, 1.1221 and 1.1384 at 4 (the
law's), 8, 16 and 32. It takes 16; the others keep the law's, which suited them at 0.4M.
""",
    "outer": """
Up to H = 8 our defaults are plain averages with another window, so that at H = 4 both end alike is no more
than it should be. When no rate above 1.41 was tried ours had seemed 1.9 % worse there: the best one is twice
that. Every constant momentum that was tried at H = 4 is worse, by 1.4 % and more (seed 0, rates up to 1.41);
at H = 24 and 96 plain averages end 9 and 10 % above our defaults: hence our defaults by H. Momentum
with a schedule, tried at two rates, did no better there (0.7 and 0.7: 1.623, as our defaults at that rate);
at higher rates, where ours are best, it was not tried. H = 4 ends above H = 24 all the same.
""",
    "bits": """
Four bits both ways cost less than 0.3 % at a quarter of the bytes. Two bits cost half a percent, 0.54 %
(0.26 to 0.82) with error feedback and 0.50 % (0.24 to 0.76) without: worse for sure, by more than 0.3 % not
for sure. Eight bits and f32 had five seeds only: that they end above four bits is not told apart from luck.
Error feedback gave nothing back even at two bits (+0.04 %, -0.24 to +0.33). Why we
do not know; a guess is that what rounding drops from an offer is learned again in the next interval, and that
by then the old remainder is stale. It stays on: it costs no bytes, and other models may need it.
""",
    "adopt": """
Rebase loses none of a learner's steps and gains nothing by it that could be seen: +0.5 % (-0.1 to +1.1) at
H = 24, and -0.3 % (-1.1 to +0.5) at H = 6, where overwrite drops a quarter of the tokens. Steps made from
old values seem to be worth little on top of new ones. Blend loses the more, the more a learner keeps of its
own values. So overwrite, as in the paper.
""",
    "scavenging": """
Borrowed learners save the time that they should, and here they cost loss: while they are there a step has
more examples and the run fewer steps, and at 0.1M parameters more learners cost as much when they stay
(learners: M = 8 is 7.6 % above M = 4). The learning rate is that of four learners throughout; eight would
want a larger one.
""",
    "vision": """
By our defaults both ways of training end 4 % below Data-Parallel; to Data-Parallel with the mean of its last
tenth nothing is left of that that could be seen. So it is the calmer end that the schedule of momentum gives.
Two runs of one seed differ by 1.5 %, as much as with eight variants of each held-out digit: what the variants
did not explain is left.
""",
    "non-iid": """
Learners with other parts of the library than the rest end no worse that could be seen; five seeds cannot
exclude 1.3 % at M = 4 and 0.9 % at M = 8. These parts are files
of one library and much alike: it is a mild test.
""",
    "failures": """
A pause costs time, and 0.38 % (0.12 to 0.64) of loss: a learner that stands still while a round is merged
without it is overwritten by what was published, and 86 % of the tokens were merged instead of 95. A death
costs more time than the fleet model says: here every pause of every learner is made one, about once in 22
steps, which no real fleet has. What is lost is what was not offered yet. AdamW's moments matter most.
""",
    "grace": """
Waiting for those who bring more than waiting costs is better wherever many are late, and costs nothing
that could be seen where nobody is. By the paper's rule one offer in seven comes too late where steps vary
by half, and where half of the learners take four times as long a third of them. Longer windows for
everybody did as well there when screened; where one learner is ten times slower all wait for it in vain, and
they merge fewer of the tokens (89 and 84 % against 93). The last claim is about fleets in which merging takes
so long that nothing is left of tau: short steps, thin links. Streaming waits for everybody: it merges more of
its tokens, and has 83, 40 and 11 % of the goodput on the uneven fleets; at equal tokens its loss is no
better than ours.
""",
    "closing-the-gap": """
Outer momentum that rises from 0 over the first tenth of the run and falls back to 0 over the last fifth
costs nothing and takes 3 % off: it is our default now. With it and its learning rate int8 at half of H
closes 81 % of the gap at M = 4 and 49 % (40 to 58) at M = 8: half, give or take. At M = 4 that is the
schedule's doing: our defaults at H = 24 in bf16 end where it does (the two differ by -0.03 %, -0.69 to
+0.63). At M = 8 our defaults close 31 % (25 to 36), and the rounds at half of H take another 2.1 % (0.8 to
3.4) off the loss. At the learning rate of the plain settings the same idea closed 90 % (68 to 111) at M = 4
and 45 % (42 to 49) at M = 8 on the same five seeds; the other rate was the better one by 0.1 % in the
screening. Four bits at half of H, at half the bytes, were nearly as good when screened; four bits at a
quarter of H lose with constant momentum, and with the schedule they do no better than it does alone (two
seeds). The ideas of half of H were added after single runs at seed 0 had shown them. Part of the gain might
be an end with smaller steps, which Data-Parallel was not given: its rate stops at a tenth. Of the gap to
Data-Parallel with the mean of its last tenth, which is 0.9 % better, the best idea closes 68 % (50 to 86)
at M = 4 and 45 % (37 to 54) at M = 8. Averaging the last models helps everybody, Data-Parallel as well: it
closes 31 % of the gap at M = 4, 2 % at M = 8, and on top of the best idea nothing. At M = 8 eight windows a
step are themselves 2.3 % worse than one for Data-Parallel (sweep), and learners with one window each have
nothing to shrink.
""",
}
"""Experiment: what we make of it, written by hand once its results are in."""

DEFAULTS: Mapping[str, tuple[str, str]] = {
    "sync.merge_rule": ("RDA", """
[merge-rule](#merge-rule): the mean is better than the paper's RDA at M = 8 and at M = 4 within +0.5 % of it;
it is not told apart from RDA on embeddings too. At 0.1M parameters.
"""),
    "outer.learning_rate": ("not published", """
At H = 24: the [sweep](#sweep) of Decoupled and of DiLoCo. Up to H = 8 it is 1: [outer](#outer).
"""),
    "outer.momentum": ("not published", """
As above; up to H = 8 it is 0. [outer](#outer): at H = 4 plain averages are best, at H = 24 and 96 they
end 9 and 10 % above our defaults.
"""),
    "outer.momentum_warmup": ("no such thing", """
[closing-the-gap](#closing-the-gap): with the cool-down it takes 3 % off the loss at M = 4 and at M = 8.
Neither 0.1 nor 0.2 was swept.
"""),
    "outer.momentum_cooldown": ("no such thing", """
As above.
"""),
    "codec.up": ("bf16", """
[bits](#bits): int4 both ways costs less than 0.3 % (+0.04 %, -0.21 to +0.29) and is the choice for thin
links; bf16 stays: text at one small size is too little to leave the paper's for.
"""),
    "codec.down": ("bf16", """
As above, both ways at once.
"""),
    "codec.error_feedback": ("no such thing", """
[bits](#bits): it changed nothing that could be seen, and costs no bytes.
"""),
    "sync.adopt": ("overwrite", """
[adopt](#adopt): within +0.1 % of the best other way, rebase, at H = 24; blend loses 1.4 to 5 %.
"""),
    "sync.min_quorum": ("1", """
With a grace window: [mixed-hardware](#mixed-hardware), where it was the paper's. K = 1 with grace is better
than K = M by 1.1 to 7 %, and without grace 25 to 46 % worse.
"""),
    "sync.grace_rule": ("slack", """
[grace](#grace): the syncer waits for those who bring more than waiting costs. -1.7 % (-2.2 to -1.2) where
steps vary by half, -0.6 % (-0.8 to -0.3) where half of the learners are 4x slower, +0.1 % (-0.2 to +0.3)
where all are alike.
"""),
    "sync.grace_max_steps": ("1", """
As above: a bound. How often it is reached was not counted.
"""),
    "sync.overlap_steps": ("2", """
As above: tau rounds may gather at once, so rounds that wait need a larger one.
"""),
    "guard.max_share": ("token weights", """
[mixed-hardware](#mixed-hardware): with 1, weights go by tokens. Equal ones are not told apart at 18 %
slower, 0.6 % better (0.1 to 1.1) at 2x and 1.0 % (0.6 to 1.5) at 4x. One experiment is too little to leave
the paper's rule for.
"""),
}  # fmt: skip
"""Setting, such as outer.momentum: (the paper's value, why ours is what it is). Ours is `RunConfig`'s own."""

OPENING = """\
# What the lab found

Is a model that was trained on islands which never wait for each other as good as one trained in lock-step?
Experiments that anybody can run again on a laptop ask it, with real gradients on small models.

At 0.1M parameters and equal tokens it is as good as one by synchronous Streaming DiLoCo, which waits for
everybody (within half a percent where that could be told). Against tuned Data-Parallel it is level with 2
learners, about 1 % behind with 4, and 9 % with 8; of larger models there is a first look only
([rates](#rates), one seed). Four bits both ways cost less than 0.3 %, failures that pause
learners 0.4 % (0.1 to 0.6); deaths that lose optimizer state, and extra learners that come for half of the
work, cost several percent.

[Which settings, and why](#defaults-and-their-evidence) · [what is fair](#fairness) ·
[every claim](#all-claims)
"""

METHOD = """\
## How the lab works

- A learner's steps are real torch steps on a small model; everything else is the production code: the core,
  codecs, merge and outer optimizer of `atoll train`. Only Data-Parallel is a plain loop over the whole batch.
- Time is virtual. A calendar says when each learner steps, fails, returns and hears from the syncer; how busy
  the machine is changes nothing, and the same seed gives the same bits.
- A seed decides initial weights, data and the luck of the fleet. Two methods at one seed are a pair; a
  comparison is the mean difference over pairs with its 95 % interval (Student's t).
- *Holds*: the whole interval is on the right side of the limit. *Fails*: all of it is on the wrong side. *Not
  resolved*: the limit lies inside; the claim says how many seeds it would take. One seed never holds.
- Arms that claims of a fraction of a percent rest on get four times the seeds that the command asks for, of
  images and failures eight times; tables say how many.
- Losing results stay. Figures of others are marked as theirs, extensions of them as ours.

**Words.** M learners, each with its own data, train on their own. The model is cut into P fragments; a
*round* merges one of them about every H steps of a learner. A learner's *offer* is its progress on the
fragment; the syncer closes a round when K learners have offered and a *grace window* for the late is over,
merges (by the mean, or by *RDA*, which averages directions and lengths apart), takes a step of rate eta and
momentum mu, and *publishes* the fragment; learners *adopt* it. tau: rounds that may gather offers at the same
time. *Goodput*: useful steps, as a share of those that all could have made. *Participation*: offers merged,
as a share of those there might have been. A *calm* fleet has learners of one speed that never fail.

[lab.md](lab.md) says how to run it, how to add an experiment, and what virtual time leaves out.

**No difference from real processes was seen where offers come in time.** `python benchmarks/cross_check.py
--seeds 5 --speed 0.1` trains a setting of the lab (M = 4, our defaults) through `atoll train` as well: 1.5725
± 0.0140 against 1.5661 ± 0.0095, +0.41 % (-0.71..+1.52), with 99.5 to 99.8 % of the offers in time
([record](../benchmarks/records/cross-check-2026-11-20.md)). Five seeds that are not paired cannot exclude a
percent. With the paper's grace window 98.5 to 99.0 % were in time, and it was +0.28 % (-1.07..+1.62, three
seeds, [record](../benchmarks/records/cross-check-2026-11-18.md)). Beside other work, with that window and
steps of 20 ms that were stretched unevenly (since mended), only 61 % were, and real processes ended 5.6 %
(2.5..8.8) higher ([record](../benchmarks/records/cross-check-busy-2026-11-18.md)): the figures of this page
are of fleets whose offers come in time.
"""

FAIRNESS = """\
## Fairness

The rule: all methods start from the same weights, see the same data and train the same number of tokens,
with a learning rate that decays to a tenth. Each is shown at its own best as far as it was looked for. At
`tiny` and M = 4 all are swept by coordinate (learning rate, batch, then eta and mu) in the same manner, with
9 to 14 runs for each method; DiLoCo and Streaming merge by the mean, as they were published. At other M and
tasks three learning rates around the transferred best are tried, and one more while the best is the lowest
or the highest of them; eta and mu stay. Decoupled was looked at in far more settings than that, all
experiments taken together (the list below counts them): its defaults are the best of many, chosen at seeds
that no claim uses but for what is said below, against baselines that had a sweep. At other sizes rate and
batch follow compute by one published law for all methods; then rates are tried in the same way for
Data-Parallel and for Decoupled by our defaults at each M, and after them half and twice the batch and on
while that is better. The other methods take what was found for Decoupled there: these are less well tuned.
Each method has its own batch; one with learners takes at least an example for each of them, which
Data-Parallel need not. beta2 of the inner AdamW is 0.95 for all: 0.99 made Data-Parallel and Decoupled with
constant momentum alike 0.9 % better at `tiny` and M = 4 (closing-the-gap), and was not tried with our
defaults.

Our defaults have momentum that rises over the first tenth of a run and falls to 0 over the last fifth,
learning rates that were tried with it, and rounds that wait for the late by worth ([grace](#grace)); else
they are the settings of Decoupled. Momentum's schedule was found by closing-the-gap when most experiments had
been run, the rule for the late after that. Learning rates of our defaults were chosen with the paper's
window; where learners are alike the two windows do nearly the same. Other methods by our defaults have the
schedule of momentum and the learning rate that suits Decoupled. What was run with older settings is listed
([to be run again](#to-be-run-again)). Tables that do not speak of our defaults have constant momentum and the
paper's window, and what they call the default is that.

Arms that claims of a fraction of a percent rest on were first given ten seeds at `tiny`, and most of those
claims stayed open. They were then given twenty, all at once, and the verdicts are those of the twenty: that
int4 costs less than 0.3 % was open at ten and holds at twenty. `failures` was open there too and was given
forty. Who looks twice is wrong more often than once in twenty: up to once in ten. In `parity` Decoupled
by our defaults was trained on the same seeds once more when its grace window changed. `vision` was scored on
eight variants of each held-out digit until it was noticed that which eight they were moved the difference of
two runs by 1.1 % in the one pair that was looked at. With 64 variants, rates chosen anew and forty seeds were
asked for at once.

Not everything was settled beforehand. After first runs had been seen (about 40 each time, thrown away) two
things were changed that also lower the gap to Data-Parallel: each place of a text is given the three bytes
before it, because equal runs ended too far apart (M = 4: +11..18 % to about +5 %), and the batches of methods
with learners may go down to 4 (+8 % to +5 %; Data-Parallel could go lower already). The digits were made
noisier for the same reason. All at the seed for tuning. The schedule of momentum, like the mean as merge
rule, became our default after it had been seen to help on seeds 1 to 5, on which it is reported too.

Models here have 12 fragments; `RunConfig` and the paper have 24. Our other defaults are `RunConfig`'s.

The runs were to cost 24 hours of one core in all, and cost more: what stands above, and single tries whose
rows no table shows (`docs/results/unfinished`).
"""
