"""Text to token ids and back; loads neither JAX nor NumPy.

Read `tokenizer` first; `files` finds what it needs in a checkpoint, `gguf` builds it from GGUF
metadata, `byte_level` is the alphabet of such vocabularies, `chat_template` renders messages.
"""
