"""Draft models and each sequence's context; owns nothing that cannot be lost.

Read it downwards: `app` and `service` (a process with a gRPC face), `session` (the protocol of
one stream, without gRPC), `method` (what a draft method is), `dflash` and `eagle3` (the two
there are), `compiled` (what both share), `context` (slots, buffer, attention), `config` and
`files` (drafters on disk). Nothing here imports server or verifier.
"""
