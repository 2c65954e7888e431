"""What all draft methods share: compiled steps over a buffer of contexts.

Read `steps` (the computations of a method), `programs` (which shapes are compiled), `packing`
(rows into those shapes), `method` (warm-up, running, timing). `vocabulary` is a drafter's own
smaller vocabulary, `weight_shapes` what a method takes from its target.
It must not import `dflash` or `eagle3`.
"""
