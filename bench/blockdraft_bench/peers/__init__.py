"""`bench peers`: llama.cpp, transformers and this project on the same prompts and weights, in turn.

Read `decoders` (the programs, their weights, and how they are fetched and asked),
`llama_cpp.mjs` and `run_transformers` (how they decode), `measure` (the rounds, and their summary).
"""
