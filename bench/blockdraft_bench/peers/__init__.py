"""`bench peers`: llama.cpp, transformers and this project on the same prompts and weights, in turn.

Read `process` (how the others are asked), `llama_cpp.mjs` and `run_transformers` (how they decode),
`decoders` (who is compared, fetched and with which weights), `measure` (the rounds, and what is
said of them).
"""
