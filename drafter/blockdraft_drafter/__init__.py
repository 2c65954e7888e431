"""Draft models and each sequence's context; owns nothing that cannot be lost.

Read it downwards: `command` (`__main__` runs it), `app` and `service` (a process with a gRPC face,
and its `metrics`), `session` (the protocol of one stream, and who has which slot), `requests` (from
the wire, checked), `method` (what a draft method does), `sources` (which drafters there are),
`dflash` and `eagle3` (one folder each), `checkpoint` (drafters on disk), `compiled` (what a method
is made of, and all that methods share), `learning` (recordings, and versions that come and go).
Nothing here imports server or verifier.
"""
