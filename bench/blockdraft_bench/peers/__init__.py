"""`bench peers`: transformers, llama.cpp and this project on the same prompts and weights.

Read `command` (flags), `available` (who can take part), `answers` (what each gives), `blockdraft`,
`transformers` and `llama_cpp` (how each decodes), `measure`, `speeds` (what is summed up), `report`
(what is said of it), `figure`. It must not import another measurement.
"""
