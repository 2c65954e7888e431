"""Requests to the drafter, its responses, and the draft KV caches that they change.

Read `draft_caches` (the draft KV caches that the drafter holds, and what a response changes),
`outgoing` (what goes into a request) and `sync`, which sends requests, waits for responses and
keeps the draft KV cache of every sequence equal to what the verifier has committed. `link` is the
gRPC stream, which begins with a `handshake`; `feature_writers` bring features to the drafter,
through shared memory or in the message. A drafter that is slow, wrong or gone costs speed only, so
none of its errors leaves this package. It must not import `engine`.
"""
