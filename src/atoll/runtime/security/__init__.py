"""Who may speak with whom, and how they know.

A learner trusts a syncer by the fingerprint of its certificate, which the join URL carries: there is no
authority, no host name and no expiry to check (`certificates`, `tls`). A syncer trusts a learner by a
token, which the learner sends only after the fingerprint agreed (`tokens`). A name belongs to the identity
key that first joined under it (`identity`). With mTLS the syncer also asks for a certificate that it issued
itself, and the name in that certificate is the only one the learner may use. Secrets live in files that
only their owner can read (`private`), and in no repr, log or error.
"""
