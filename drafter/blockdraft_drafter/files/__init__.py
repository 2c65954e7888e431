"""Drafters on disk, whatever the method.

`sources` finds one: a directory, the hub, this package, or a random number generator;
`known_drafters` says which others have published for which target;
`checkpoint` loads and saves one of a given method; `tensors` reads and writes weights, and trusts
no file.
"""
