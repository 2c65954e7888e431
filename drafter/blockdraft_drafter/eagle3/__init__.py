"""EAGLE-3: one token per pass, from the drafter's own output (arXiv 2503.01840).

Read `model` (the published module), `step` (the computation of a draft), `method` (the interface
of all methods), `checkpoint` (files). It must not import `dflash`.
"""
