"""Targets whose layers are PyTorch: modules of transformers, run on JAX by torchax.

`loading` needs neither to be imported; `module` and `products` do, and are imported when such a
target is loaded.
"""
