"""Weights: where a target comes from, and how it reaches its devices.

Read `resolve` (a name, a directory, a file, a hub id), `embedded` (the default target),
`checkpoint` (what is there, checked), `loading` and `streaming` (onto the devices),
`huggingface` and `gguf`/`gguf_weights` (the two formats), `tensor_names`, `quantization`
(int8). `files` trusts no checkpoint; `huggingface_export` writes one.
"""
