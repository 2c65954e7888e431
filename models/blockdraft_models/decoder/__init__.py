"""The target decoder: every family from one module.

Read `config` (its shape), `model` (all layers), `decoder_layer` (one of them), `layer` and
`experts` (what it is made of), `attention` (the seam to the KV cache), `rope` (positions) and
`products` (batch-invariant products and sums). Where weights lie is `sharding`; `scanned` runs
equal layers as one; `sampling` is how tokens are chosen; `feature_projection` is a drafter's first
map. Nothing here reads weights from files.
"""
