"""`bench peers`: transformers, llama.cpp and this project on the same prompts and weights."""
