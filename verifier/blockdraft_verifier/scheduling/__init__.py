"""The plan of the next step: which tokens of which sequences run; pure Python.

Read `sequence` (a request and what has become of it), `pages` and `states` (which sequence owns
which page of the KV cache, and which state), `waiting` (which sequence runs next), `row` (one
sequence's part of a step), `scheduler` with `prompts` (the plan of a step), `grammar` and
`token_masks` (which tokens may come next), `canvas` (the tokens that a target denoises). Nothing
here imports JAX, NumPy or gRPC, so the whole policy is tested without a model.
"""
