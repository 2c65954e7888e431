"""The target decoder: Llama 3.x, Qwen3 and SmolLM2 from one module.

Read `config` (its shape; `config_sources` reads the published forms), `model`, `block`, `layers`,
`attention`, `rope`, `products` (matrix products as each backend computes them fastest). `axes`
and `sharding` place the weights on a mesh, `scanned` runs alike layers as one, `dtypes` chooses
the precision. Nothing here reads weights from files.
"""
