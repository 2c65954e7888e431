"""Weights: where a target comes from, and how it reaches its devices.

Read in the order in which a name becomes weights: `resolve` (a directory, a file, a hub id or the
default target), `checkpoint` (what is there, identified by `fingerprint` and checked against
`tensor_names`) over the two formats, `huggingface` and `gguf_header` with `gguf_weights`, then
`loading` (part by part onto the devices, as int8 by `quantization`). `files` trusts no checkpoint,
`progress` shows how far it is. The tokenizer is not imported here.
"""
