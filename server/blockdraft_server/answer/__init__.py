"""From the tokens of a verifier to the text of an answer.

`generation` follows one request to its end; `detokenizer` turns tokens into whole characters and
cuts before a stop sequence.
"""
