"""DFlash: a whole block of tokens in one pass (arXiv 2602.06036).

Read `config` (its shape, and the files it is published in) and `model` (the published module, and
its steps as a draft method); then what DFlash 2 adds, `convolution` and `selector`. It must not
import another method.
"""
