"""For all tests: a run of them that was started in the background has inherited an ignored SIGINT, and passes
it on to its children; tests that send one mean it."""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
