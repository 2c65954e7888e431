"""A training run, from corpus to trained drafter, of whichever method.

Read `run` (what is put together), `trainer` (all steps, with readings and checkpoints between),
`step` (one compiled update), `held_out` (acceptance as serving would have it), `checkpoints` and
`history` (what a resumed run needs), `throughput` and `progress` (what people see).
"""
