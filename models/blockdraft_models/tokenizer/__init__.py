"""Text to token ids and back; loads neither JAX nor NumPy.

Read `tokenizer` first; `files` finds what it needs in a checkpoint of either format,
`sentencepiece` what is particular to BPE that is not byte-level, and `text_decoder` makes text of
tokens as they arrive. `chat_template` renders messages in the `jinja_environment`, and
`tool_prompt` tells models of tools whose template does not.
"""
