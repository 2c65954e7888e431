"""The target decoder: Llama 3.x, Qwen3 and SmolLM2 from one module.

Read `config` (its shape; `published_config` reads the published forms), `model` (all layers),
`layer` (one of them), `modules` (what layers are made of), `attention` (the seam to the KV cache),
`rope`, `products` (matrix products as each backend computes them fastest) and `row_sums` (sums that
round alike whatever is computed beside them). Where weights lie is `sharding`; `scanned` runs alike
layers as one; `dtypes` chooses the precision; `sampling_noise` is what a sampled choice adds to the
logits, `token_filters` what it may choose. Nothing here reads weights from files.
"""
