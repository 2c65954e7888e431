"""DFlash: a whole block of tokens in one pass (arXiv 2602.06036).

Read `model` (the published module), `markov` (its bias by the token before), `step` (the
computation of a draft), `method` (the interface of all methods), `checkpoint` (files).
It must not import `eagle3`.
"""
