"""Whether dialling again can help: a dead link comes back, a wrong URL or certificate does not."""

from __future__ import annotations

import ssl

from atoll.errors import JoinError, WireError
from atoll.wire.url import RunURL

__all__ = ["why_hopeless"]


def why_hopeless(error: Exception | None, url: RunURL, name: str) -> JoinError | None:
    """Why dialling again cannot help, if what closed the connection says so."""
    where, so_what = f"{url.host}:{url.port}", "This learner cannot take part in the run."
    if isinstance(error, WireError):
        return JoinError(
            f"What answers at {where} does not speak Atoll as the URL says: {error.what}",
            so_what,
            "Check host, port and versions; with TLS the URL begins with atoll://, without with atoll+plain://.",
        )
    if not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLEOFError):
        return None
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "certificate required" in reason:
        return JoinError(
            "The run asks for a certificate (mTLS), and this learner showed none.",
            so_what,
            f"Pass certificate= with the file that the run's operator issued for {name}.",
        )
    if "alert" in reason and ("certificate" in reason or "unknown ca" in reason):
        return JoinError(
            f"The syncer does not accept this learner's certificate: {reason}.",
            so_what,
            f"Pass certificate= with the file that the operator of this very run issued for {name}.",
        )
    return JoinError(
        f"What answers at {where} does not speak TLS 1.3: {reason}.",
        so_what,
        "Check host and port; a run without TLS has a URL that begins with atoll+plain://.",
    )
