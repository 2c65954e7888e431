"""Compiling ahead of time for TPUs that are not there: does a pair fit, and what would it cost.

Read `settings` (its flags), `model_shapes` (the pair, without weights), `topology` (the chips of
each process; `roofline` is what one can do), `programs` (what each process compiles), `compiled`
(what XLA reports of a program, and its modelled time), then `survey` (all programs of a process,
and whether it fits) and `report`, for `command`. Nothing is run, and no serving package may import
this one.
"""
