"""Deliberate bugs: each is a patch on the core, applied one at a time.

The simulator must catch every one of them, and only because of faults: without any, each bug
hides. That is what makes the table a proof that the simulator can fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from atoll.core import admission, learner, rounds
from atoll.core import events as ev
from atoll.core import messages as msg
from atoll.core.admission import Admission
from atoll.core.desk import Desk
from atoll.core.donations import Donations
from atoll.core.gates import NormGate
from atoll.core.learner import LearnerMachine
from atoll.core.records import EpochRecord, MemberRecord, StoredState
from atoll.core.rounds import Rounds
from atoll.core.schedule import Schedule
from atoll.core.strikes import Strikes
from atoll.core.syncer import SyncerMachine
from atoll.sim import disk, process
from tests.chaos import patches
from tests.chaos.patches import SYNCER_EVENTS, SYNCER_MESSAGES

Patch = tuple[Any, Any, Any]


@dataclass(frozen=True)
class Bug:
    """A name, what it gets wrong, its patches, and a seed that is known to show it."""

    name: str
    wrong: str
    patches: tuple[Patch, ...]
    known_seed: int = 1

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The core with this bug in it."""
        kept = [(owner, name, _members(owner)[name]) for owner, name, _ in self.patches]
        try:
            for owner, name, value in self.patches:
                _put(owner, name, value)
            yield
        finally:
            for owner, name, value in kept:
                _put(owner, name, value)


def _members(owner: Any) -> Any:
    return owner if isinstance(owner, dict) else vars(owner)


def _put(owner: Any, name: Any, value: Any) -> None:
    """Patch an attribute, or an entry of a table of handlers."""
    if isinstance(owner, dict):
        owner[name] = value
    else:
        setattr(owner, name, value)


BUGS: tuple[Bug, ...] = (
    Bug(
        "hello-taken-for-hearing",
        "a learner that hears nothing, and so says hello again and again, counts as connected",
        ((Admission, "attach", patches.hello_is_hearing),),
        known_seed=27,
    ),
    Bug(
        "no-fencing",
        "messages of an older incarnation are taken for the living one's",
        (
            (SyncerMachine, "_session_of", patches.session_without_fencing),
            (Admission, "send_fenced", patches.do_nothing),
            (Rounds, "fence", patches.do_nothing),
        ),
        known_seed=7,
    ),
    Bug(
        "old-epoch-by-number",
        "an earlier epoch's offer is accepted because its round has the right number",
        ((SyncerMachine, "is_current", patches.is_current_by_number),),
        known_seed=50,
    ),
    Bug(
        "merged-twice-after-late-publish",
        "progress is offered and merged again while the publish that contains it is on its way",
        (
            (LearnerMachine, "_why_not", patches.always_offers),
            (rounds, "screen", patches.screen_without_contribution),
        ),
        known_seed=15,
    ),
    Bug(
        "publish-despite-failed-commit",
        "a round is published although the store refused it",
        ((SYNCER_EVENTS, ev.Committed, patches.committed_anyway),),
        known_seed=1,
    ),
    Bug(
        "publish-before-commit",
        "after a write that had to be repeated, a round is published before its commit",
        ((Rounds, "delta_put", patches.put_then_publish), (Rounds, "retry_put", patches.remember_retry)),
        known_seed=11,
    ),
    Bug(
        "quorum-off-by-one",
        "a round that lost an offer after its close merges with K-1",
        ((Rounds, "lacks_quorum", patches.lacks_two),),
        known_seed=1,
    ),
    Bug(
        "grace-never-closes",
        "the grace window stays open until the fragment is due again",
        ((rounds, "judge", patches.judge_for_ever),),
        known_seed=2,
    ),
    Bug(
        "stale-base-accepted",
        "an offer on a base older than the previous version is merged",
        (
            (LearnerMachine, "_why_not", patches.always_offers),
            (rounds, "screen", patches.screen_without_base),
            (SyncerMachine, "may_offer", patches.may_offer_again),
        ),
        known_seed=15,
    ),
    Bug(
        "counters-not-reset",
        "counters do not restart at the first adoption after a restart of the syncer",
        ((LearnerMachine, "_adopt", patches.keep_counters),),
        known_seed=2,
    ),
    Bug(
        "unhealed-donor",
        "a learner that came back offers before it holds every fragment",
        (
            (SyncerMachine, "may_offer", patches.may_offer_again),
            (rounds, "screen", patches.screen_without_healing),
        ),
        known_seed=3,
    ),
    Bug(
        "torn-record-accepted",
        "a delta is believed without its digest",
        ((disk.File, "is_intact", property(lambda self: True)),),
        known_seed=4,
    ),
    Bug(
        "tokens-lost-in-ledger",
        "only the first contributor's tokens are booked",
        ((StoredState, "_apply_round", patches.forget_tokens),),
        known_seed=2,
    ),
    Bug(
        "burst-after-outage",
        "after an outage of the syncer every missed round is fired",
        (
            (Schedule, "jump_steps", property(patches.never_jump)),
            (SYNCER_EVENTS, ev.Loaded, patches.remember_restart),
        ),
        known_seed=1,
    ),
    Bug(
        "slow-link-starved",
        "the bodies of a learner that came back get a fixed deadline instead of their link's",
        ((Rounds, "_body_deadline_ns", patches.fixed_deadline),),
        known_seed=20,
    ),
    Bug(
        "lost-publish-never-resent",
        "a version is sent to a learner once, whether it arrives or not",
        ((SyncerMachine, "_serve", patches.serve_once), (SYNCER_MESSAGES, msg.Want, patches.do_nothing)),
        known_seed=14,
    ),
    Bug(
        "incarnation-not-durable",
        "an admission is announced before it is on disk",
        ((Desk, "commit", patches.commit_lazily(MemberRecord)),),
        known_seed=23,
    ),
    Bug(
        "epoch-not-durable",
        "the syncer speaks before its epoch is on disk",
        ((Desk, "commit", patches.commit_lazily(EpochRecord)),),
        known_seed=3,
    ),
    Bug(
        "delta-not-synced",
        "a round is committed while its delta is still in the cache",
        ((Rounds, "_put", patches.put_lazily),),
        known_seed=3,
    ),
    Bug(
        "lower-epoch-believed",
        "a learner obeys what an earlier life of the syncer said",
        ((LearnerMachine, "_is_for_me", patches.is_for_any_epoch),),
        known_seed=14,
    ),
    Bug(
        "fate-by-verdict-alone",
        "a learner that missed a publish counts its merged tokens as late",
        ((learner, "fate_of", patches.fate_by_verdict),),
        known_seed=15,
    ),
    Bug(
        "progress-given-up",
        "after a restart of the syncer an unresolved offer's progress is dropped from the counters only",
        ((LearnerMachine, "_dissolve", patches.dissolve_and_forget),),
        known_seed=1,
    ),
    Bug(
        "nan-merged",
        "the gate compares norms and forgets that NaN compares with nothing",
        ((NormGate, "judge", patches.judge_norm_only), (Rounds, "merged", patches.merged_unchecked)),
        known_seed=1,
    ),
    Bug(
        "offer-of-the-dead-merged",
        "offers of a fenced life stay in the rounds that gather",
        ((Rounds, "fence", patches.do_nothing),),
        known_seed=7,
    ),
    Bug(
        "admitted-during-commit",
        "a new life is admitted while an offer of the old one is being committed",
        ((Rounds, "is_past_recall", patches.never_past_recall),),
        known_seed=1,
    ),
    Bug(
        "full-disk-forgotten",
        "a write that the disk refused is not tried again",
        ((Rounds, "retry_put", patches.do_nothing),),
        known_seed=11,
    ),
    Bug(
        "rollback-refuses-offers",
        "after a rollback, learners are held to versions that no longer exist",
        ((StoredState, "_apply_rollback", patches.rollback_keeps_contributions),),
        known_seed=82,
    ),
    Bug(
        "missing-body-forgotten",
        "an offer whose body had to be asked for again is dropped without looking at the quorum",
        ((Rounds, "await_bodies", patches.close_at_once),),
        known_seed=75,
    ),
    Bug(
        "quarantine-costs-the-quorum",
        "a learner that the quorum needs stays in quarantine until its time is over",
        ((Strikes, "release", patches.release_by_time_alone),),
        known_seed=16,
    ),
    Bug(
        "spoiled-progress-counted",
        "after a quarantine, progress that was given up when the last fragment came is offered as tokens",
        ((LearnerMachine, "_begin_anew", patches.begin_anew_without_settling),),
        known_seed=3,
    ),
    Bug(
        "donor-by-presence",
        "whoever is connected is asked for its optimizer state, healed or not",
        ((Donations, "_donors", patches.donors_by_presence),),
        known_seed=4,
    ),
    Bug(
        "way-back-forgets-the-tick",
        "after a way back the versions are the old ones and t is not",
        ((StoredState, "apply", patches.apply_without_tick),),
        known_seed=11,
    ),
    Bug(
        "way-back-voids-nothing",
        "tokens that were merged into versions given up stay in the ledger",
        ((StoredState, "_apply_rollback", patches.rollback_voids_nothing),),
        known_seed=4,
    ),
    Bug(
        "clock-from-the-future",
        "a learner that trained on during a way back keeps its clock",
        ((LearnerMachine, "_welcome", patches.welcome_without_way_back),),
        known_seed=11,
    ),
    Bug(
        "end-believed-for-ever",
        "a learner that heard of the end offers nothing after a way back from it",
        ((LearnerMachine, "_welcome", patches.welcome_after_the_end),),
        known_seed=195,
    ),
    Bug(
        "step-taken-again-at-full-momentum",
        "a restart folds old deltas with the whole of mu, also those merged while it was warming up",
        ((process.SyncerProcess, "_replay_files", patches.replay_at_full_momentum),),
        known_seed=4,
    ),
    Bug(
        "shard-kept-though-taken",
        "a learner gets the shard of its last life although somebody present has it by now",
        ((admission, "shard_for", patches.own_shard_for),),
        known_seed=68,
    ),
)
