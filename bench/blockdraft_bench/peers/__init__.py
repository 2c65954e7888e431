"""`bench peers`: llama.cpp, transformers and this project on the same prompts and weights, in turn.

Read `command` (settings), `tools` (fetching the others), `weights` (what they read), `process` (how
they are asked), `llama_cpp.mjs` and `run_transformers` (how they decode), `decoders` (who is
compared), `measure`, `speeds` (what is summed up), `report` (what is said of it), `figure`. It must
not import another measurement.
"""
