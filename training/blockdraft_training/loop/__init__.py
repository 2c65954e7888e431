"""A training run, from corpus to trained drafter, of whichever method.

Read `run`, then `step` and `optimizer` (one compiled update), `held_out` (acceptance as serving
would have it), `checkpoints` and `history` (what a resumed run needs), `throughput`, `progress`
and `plot` (what people see).
"""
