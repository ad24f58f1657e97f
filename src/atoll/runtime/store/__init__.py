"""The run directory, and what else can keep a run.

`interface` says what a store promises, `run_store` keeps a run in a directory, `memory` in memory, `view`
looks at one from outside. Below them: `ledger` and `tables` (run.db), `snapshots` and `tensors` (the
files), `live` (which deltas are needed), `rebuild` (how fragments come back), `rules` (what may be
committed), `settings` (config.toml), `lock`, and `files`, through which every operation on the disk goes.
"""

from __future__ import annotations

from atoll.runtime.store.interface import Found, PreparedSnapshot, Store
from atoll.runtime.store.memory import MemoryStore
from atoll.runtime.store.run_store import RunStore
from atoll.runtime.store.view import RunView, read_run

__all__ = ["Found", "MemoryStore", "PreparedSnapshot", "RunStore", "RunView", "Store", "read_run"]
