"""A training run, from corpus to trained drafter, of whichever method.

Read `run` (the parts of a run and the loop over its steps), `step` (one compiled update),
`held_out` (acceptance as serving would have it), `checkpoints`, `records` (readings, on disk and on
the terminal).
"""
