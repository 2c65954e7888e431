"""The target decoder: every family from one module.

Read `config` (its shape), `model` (all layers), `decoder_layer` (one of them), `layer` and
`experts` (its parts), `attention` (the interface to the KV cache), `rope` (positions) and
`products` (batch-invariant products and sums). `sharding` places weights on devices; `scanned`
runs equal layers as one; `sampling` chooses tokens; `feature_projection` is a drafter's first map.
Nothing here reads weights from files.
"""
