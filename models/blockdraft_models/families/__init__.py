"""The families of decoders that load: how each writes its configuration and names its weights.

A new one is a module here and a row in `table.FAMILIES`; what it computes that no other does is a
field of `DecoderConfig`.
"""
