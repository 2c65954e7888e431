"""`blockdraft train`: corpora of the target's own answers, drafters trained on them.

In the order of use: `corpus/` and `generation/` (prompts in, answers out), `methods/` (what each
draft method learns from them), `features/` (what the target says of an answer), `loop/` (the
run), then `export` and `card` (the result). The commands are the modules named so. Nothing here
imports gRPC.
"""
