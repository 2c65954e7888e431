"""What all draft methods share: compiled steps over a draft KV cache.

Read `definition` (what a method is made of), `programs` (what it computes, in which shapes, and
which token is drafted), `packing` (rows into those shapes), `runner` (warm-up, running, timing).
`buffer` is the draft KV cache on the device, `attention` is what draft layers attend to it with, by
`kernel` on TPU. It must not import `dflash` or `eagle3`.
"""
