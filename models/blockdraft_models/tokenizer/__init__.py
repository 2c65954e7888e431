"""Text to token ids and back; loads neither JAX nor NumPy.

Read `tokenizer` first; `files` reads its parts from a checkpoint of either format, `sentencepiece`
those of BPE that is not byte-level, and `text_decoder` makes text of tokens as they arrive.
`chat_template` renders messages in the `jinja_environment`, and `tool_prompt` describes tools to
models whose template does not.
"""
