"""Draft models and each sequence's context; owns nothing that cannot be lost.

Read it downwards: `app` and `service` (a process with a gRPC face), `session` (the protocol of
one stream, without gRPC), `requests` (from the wire, checked), `method` (what a draft method
does), `catalogue` (which ones there are), `dflash` and `eagle3` (one folder each), `compiled`
(what a method is made of, and all that methods share), `context` (slots, buffer, attention),
`files` (drafters on disk), `learning` (recordings, and versions that come and go). Nothing here
imports server or verifier.
"""
