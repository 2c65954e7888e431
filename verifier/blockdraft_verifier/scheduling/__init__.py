"""The plan of the next step: which tokens of which sequences run; pure Python.

Read `sequence` (a request and what has become of it), `pages` (which sequence owns which page of
the KV cache), `waiting` (which sequence runs next), `scheduler` with `prompts` (the plan of a
step). Nothing here imports JAX, NumPy or gRPC, so the whole policy is tested without a model.
"""
