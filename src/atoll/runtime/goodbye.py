"""Learners leave when their process ends: at the end of the interpreter, and on SIGTERM.

One handler serves all learners of a process, whichever joined first or last. A forked child has inherited
handler and learners, and leaves for none of them.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import weakref
from multiprocessing import util
from types import FrameType

from atoll.runtime.learner import Learner

__all__ = ["say_goodbye_at_exit"]

EXIT_PRIORITY = 100
"""Children of multiprocessing run finalizers and no atexit; ours comes before those that close its queues."""

_present: weakref.WeakSet[Learner] = weakref.WeakSet()
"""Learners of this process that have not left."""


def say_goodbye_at_exit(learner: Learner) -> None:
    """Leave when the interpreter ends, and on SIGTERM where nobody else has a use for it."""
    _present.add(learner)
    atexit.unregister(_leave_all)
    atexit.register(_leave_all)  # what was registered last comes first
    util.Finalize(None, _leave_all, exitpriority=EXIT_PRIORITY)  # for processes that end without atexit
    learner.on_left.append(lambda: _present.discard(learner))
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) in (
        signal.SIG_DFL,
        None,
    ):
        signal.signal(signal.SIGTERM, _on_sigterm)


def _leave_all() -> None:
    for learner in list(_present):
        learner.leave()


def _leave_and_die() -> None:
    _leave_all()
    os.kill(os.getpid(), signal.SIGTERM)


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if any(learner.is_own for learner in list(_present)):
        # The thread that was interrupted may hold the machine's lock, so another one says goodbye.
        threading.Thread(target=_leave_and_die, name="atoll-goodbye", daemon=True).start()
    else:
        os.kill(os.getpid(), signal.SIGTERM)
