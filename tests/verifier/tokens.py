"""A tokenizer of a few bytes, which another process can make without what targets are made of."""

from llguidance import LLTokenizer


def tokenizer(definition: str, vocab_size: int, end: int) -> LLTokenizer:
    return LLTokenizer(definition, n_vocab=vocab_size, eos_token=[end])
