"""EAGLE-3: one token per pass, from the drafter's own output (arXiv 2503.01840).

Read `config` (its shape, and the files it is published in) and `model` (the published module, and
its steps as a draft method). It must not import another method.
"""
