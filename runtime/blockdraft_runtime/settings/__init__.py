"""The settings of each serving process, so that a program that starts one need not import it.

`process` is what all of them share; `server`, `verifier` and `drafter` are the settings of one
process each. Pure Python: neither gRPC nor JAX, which `--help` must not wait for.
"""
