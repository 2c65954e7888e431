"""Target models: their computation, weights and tokenizers; knows no gRPC.

Read `decoder/` (the model in Flax NNX), `kernels/` (products, sums and attention on CPU and TPU),
`weights/` (from a name to weights on devices), `precision` (the element type they are served in),
then `tokenizer/` (text to ids and back, without JAX or NumPy).
`processor` describes a CPU and the cores that may be used, `cache` is the folder of files made
once, `executables` the sizes of compiled programs and the folder where JAX keeps them,
`sampling_options` a request's rule of choosing tokens; `errors` are the errors that this package
raises on purpose. It must not import any other package of ours.
"""
