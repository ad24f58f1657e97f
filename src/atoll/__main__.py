"""`python -m atoll`: the command line."""

from __future__ import annotations

from atoll.cli.main import app

if __name__ == "__main__":
    app()
