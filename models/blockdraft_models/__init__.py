"""Target models: configuration, Flax NNX decoders, checkpoints and tokenizers; knows no gRPC.

Importing the package, `config`, `gguf`, `tokenizer`, `embedded` and `resolve` loads neither JAX
nor Flax, so that a process which only handles text stays small. `decoder` and `loading` do.
"""
