"""Fleets of chips that fail and return: goodput, uptime and traces, from a vectorised event model."""
