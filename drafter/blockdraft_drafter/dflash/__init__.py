"""DFlash: a whole block of tokens in one pass (arXiv 2602.06036).

Read `config` (its shape), `model` (the published module), `markov` (its bias by the token
before), `steps` (the computations), `published` (files), `definition` (all of it as a method).
It must not import another method.
"""
