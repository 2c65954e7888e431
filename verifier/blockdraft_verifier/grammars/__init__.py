"""Grammars of requests, compiled within bounds.

Read `compiler` (off the event loop, each grammar once), `fair_queue` (whose is next), `trial`
(first in a process of its own, as a few take minutes and gigabytes), `compilation` (a grammar for a
target's tokenizer) and `schema_errors` (where in a schema an error is). An output is followed by
`scheduling.grammar`.
"""
