"""Causal attention of a ragged batch over the paged KV cache.

`paged` is what a decoder layer calls, on one device or a mesh. It attends by `portable`, plain
JAX that runs anywhere and defines the result, or by `kernel`, JAX's Pallas kernel for TPU.
"""
