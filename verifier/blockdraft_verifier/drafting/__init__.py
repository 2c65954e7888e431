"""What the drafter is told and asked, and what became of it.

Read `contexts` (what the drafter holds, and what an answer of its changes), `outgoing` (what goes
into a request) and `sync`, which sends the ones, waits for the others and keeps the drafter's
context of every sequence equal to what the verifier has committed. `link` is the gRPC stream, which
begins with a `handshake`; `feature_writers` bring features to the drafter, through shared memory or
in the message. A drafter that is slow, wrong or gone costs speed only, so no error of it leaves
this package. It must not import `engine`.
"""
