"""Code that all draft methods share: compiled steps over a draft KV cache.

Read `definition` (the parts of a method), `programs` (its computations, their shapes, and the
choice of drafted tokens), `packing` (rows into those shapes), `runner` (warm-up, running, timing).
`buffer` is the draft KV cache on the device, `attention` is that of draft layers, by `kernel` on
TPU. It must not import `dflash` or `eagle3`.
"""
