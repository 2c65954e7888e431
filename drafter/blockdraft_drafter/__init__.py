"""Draft models and the draft KV cache of each sequence; owns nothing that cannot be lost.

Read it downwards: `command` (`__main__` runs it), `app` and `service` (a process that serves gRPC,
and its `metrics`), `session` (the protocol of one stream, and the slots of its sequences),
`requests` (checks of requests), `method` (the interface of a draft method), `sources` (the drafters
there are), `dflash` and `eagle3` (one folder each), `checkpoint` (drafters on disk), `compiled`
(the parts of a method, and the code that methods share), `learning` (training samples, and versions
that come and go). Nothing here imports server or verifier.
"""
