"""Compiling ahead of time for TPUs that are not there: does a pair fit, and what would it cost.

Read `settings` (what it is told), `pair` (the two models), `topology` (chips, and which process has
which), `model_shapes` (models without weights), `target_programs` and `programs` (what each process
compiles), `compiled` and `modelled` (what XLA says of a program, and the time by `roofline`), `hlo`
and `rounding` (how a program adds), `classes` (which programs add alike), `fit` (memory), then
`survey` and `report` with `classes_report`, which bring it together for `command`. Nothing is run,
and nothing here may be imported by what serves.
"""
