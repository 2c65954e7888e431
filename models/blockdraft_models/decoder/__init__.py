"""The target decoder: Llama 3.x, Qwen3 and SmolLM2 from one module.

Read `config` (its shape; `published_config` reads the published forms), `model` (all layers),
`layer` (one of them, and what it is made of), `attention` (the seam to the KV cache, positions) and
`products` (batch-invariant products and sums). Where weights lie is `sharding`; `scanned` runs
equal layers as one; `sampling` is how tokens are chosen; `feature_projection` is a drafter's first
map. Nothing here reads weights from files.
"""
