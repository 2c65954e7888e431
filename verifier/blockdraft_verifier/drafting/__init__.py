"""What the drafter is told and asked, and what became of it.

`sync` keeps the drafter's context of every sequence equal to what the verifier has committed,
and repairs it when it is not; `contexts` is what the drafter holds as far as is known, `link` the
gRPC stream to it. A drafter that is slow, wrong or gone costs speed only, so no error of it leaves
this package. It must not import `engine`.
"""
