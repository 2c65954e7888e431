"""Target models: what they compute, their weights, their tokenizers; knows no gRPC.

Read `decoder/` (the model in Flax NNX), `kernels/` (how a CPU multiplies and attends), `weights/`
(a name becomes weights on devices), `precision` (what element type these are served in), then
`tokenizer/` (text to ids and back, without JAX or NumPy).
`processor` tells what a CPU is and how much of it may be used, `cache` is where what was made once
is kept, `executables` the sizes of compiled programs and where JAX keeps them, `sampling_options`
how a request wants its tokens chosen; `errors` are what this package raises on purpose. It must not
import any other package of ours.
"""
