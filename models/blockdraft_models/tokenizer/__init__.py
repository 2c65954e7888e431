"""Text to token ids and back; loads neither JAX nor NumPy.

Read `tokenizer` first; `files` finds what it needs in a checkpoint of either format,
`chat_template` renders messages, and `tool_prompt` tells models of tools whose template does not.
"""
