"""The tape: what happened in a run, in order, checksummed; written, read, replayed."""
