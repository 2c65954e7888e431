"""Targets whose layers are PyTorch: modules of transformers, run on JAX by torchax.

`loading` can be imported without both; `module` and `products` need them, and are imported when
such a target is loaded.
"""
