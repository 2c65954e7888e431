"""The families of decoders: the form of their configurations and the names of their weights.

A new family is a module here and a row in `table.FAMILIES`; a computation that no other family has
becomes a field of `DecoderConfig`.
"""
