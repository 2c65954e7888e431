"""Continuations of a sequence found in its own earlier text, at no model's cost; pure Python.

Read `index` (where the newest tokens occurred before) and `sequence_lookup` (what followed there,
and whether it did so again). It imports nothing of the verifier.
"""
