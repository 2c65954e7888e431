"""`bench peers`: transformers, llama.cpp and this project on the same prompts and weights.

Read `command` (settings), `available` (who can take part), `answers` (who is compared),
`transformers` and `llama_cpp` (how they decode), `measure`, `speeds` (what is summed up), `report`
(what is said of it), `figure`. It must not import another measurement.
"""
