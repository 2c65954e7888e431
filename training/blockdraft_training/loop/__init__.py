"""A training run, from corpus to trained drafter, of whichever method.

Read `run` (what is put together, and all steps with what is done between), `step` (one compiled
update), `held_out` (acceptance as serving would have it), `checkpoints`, `records` (readings, and
what people see of them).
"""
