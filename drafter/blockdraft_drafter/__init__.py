"""Draft models and the draft KV cache of each sequence; owns nothing that cannot be lost.

Read it downwards: `command` (`__main__` runs it), `app` and `service` (a process that serves gRPC,
and its `metrics`), `session` (the protocol of one stream, and which sequence has which slot),
`requests` (from the wire, checked), `method` (what a draft method does), `sources` (which drafters
there are), `dflash` and `eagle3` (one folder each), `checkpoint` (drafters on disk), `compiled`
(what a method is made of, and all that methods share), `learning` (training samples, and versions
that come and go). Nothing here imports server or verifier.
"""
