"""Target models: what they compute, their weights, their tokenizers; knows no gRPC.

Read `decoder/` (the model in Flax NNX), `weights/` (a name becomes weights on devices),
`precision/` (what element type these are served in), then `tokenizer/` (text to ids and back,
without JAX or NumPy). Each may import those named before it.
`processor` tells what a CPU is and how much of it may be used; `errors` are what this package
raises on purpose. It must not import any other package of ours.
"""
