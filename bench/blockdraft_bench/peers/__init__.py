"""`bench peers`: llama.cpp, transformers and this project on the same prompts and weights, in turn.

Read `tools` (fetching the others), `weights` (what they read), `process` (how they are asked),
`llama_cpp.mjs` and `run_transformers` (how they decode), `decoders` (who is compared), `measure`
(the rounds, and what is said of them).
"""
