"""What all draft methods share: compiled steps over a buffer of contexts.

Read `definition` (what a method is made of), `steps` (its computations), `programs` (which shapes
are compiled), `packing` (rows into those shapes), `runner` (warm-up, running, timing).
`choice` is which token is drafted, `vocabulary` a drafter's own smaller vocabulary,
`weight_shapes` what a method takes from its target. It must not import `dflash` or `eagle3`.
"""
