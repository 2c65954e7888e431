"""Target models; knows no gRPC.

`decoder/` is the model in Flax NNX, `weights/` brings checkpoints onto devices, `tokenizer/`
turns text into ids and back without JAX or NumPy. Each may import those named before it.
`testing` makes real but tiny models, `errors` are what this package raises on purpose.
"""
