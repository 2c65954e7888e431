"""Compiling ahead of time for TPUs that are not there: does a pair fit, and what would it cost.

Read `settings` (what it is told), `model_shapes` (the pair, without weights), `topology` (whose
chips; `roofline` is what one can do), `programs` (what each process compiles), `compiled` (what XLA
says of a program, and its modelled time), then `survey` (all programs of a process, and whether it
fits) and `report`, for `command`. Nothing is run, and what serves may import nothing of this.
"""
