"""EAGLE-3: one token per pass, from the drafter's own output (arXiv 2503.01840).

Read `config` (its shape), `model` (the published module), `steps` (the computations), `published`
(files), `definition` (all of it as a method). It must not import another method.
"""
