"""Weights: where a target comes from, and how it reaches its devices.

Read in the order in which a name becomes weights: `resolve` (a directory, a file, a hub id or the
default target), `checkpoint` (its contents, identified by `fingerprint` and checked against
`tensor_names`) over the two formats, `huggingface` and `gguf_header` with `gguf_weights`, then
`loading` (part by part onto the devices, as int8 by `quantization`). `files` trusts no checkpoint,
`progress` shows the progress. The tokenizer is not imported here.
"""
