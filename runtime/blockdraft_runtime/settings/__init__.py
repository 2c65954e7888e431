"""What each serving process may be told, so that whoever starts one need not import it.

`process` is what all of them share; `server`, `verifier` and `drafter` are the settings of one
process each. Pure Python: neither gRPC nor JAX, which `--help` must not wait for.
"""
