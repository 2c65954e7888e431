"""Where drafters come from.

`sources` finds one: a directory, the hub, this package, or a random number generator; `tensors`
reads and writes the weights of any of them, and trusts no file.
"""
