"""What the drafter is told and asked, and what became of it.

Read `contexts` (what the drafter holds, as far as is known), `outgoing` (what goes into a request),
`reconciler` (what an answer changes) and `sync`, which sends the ones, waits for the others and
keeps the drafter's context of every sequence equal to what the verifier has committed; `times` is
what it tells of that, `patience` when it leaves a late drafter alone. `link` is the gRPC stream,
`feature_writers` how features reach the drafter, through a `feature_ring` in shared memory or in
the message. A drafter that is slow, wrong or gone costs speed only, so no error of it leaves this
package. It must not import `engine`.
"""
