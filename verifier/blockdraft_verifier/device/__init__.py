"""One step of the target on its devices: from a plan to choices and accepted lengths.

Read `step` (what is computed), `accept` (what the target chooses, and how much of a draft agrees
with it), `attention/` and `cache` (keys, values, features), then `buckets`, `least_step` and
`packing` (few static shapes, none too short), `target_step` (the step as it is compiled), `runner`
(compile every shape before serving, then only run) and `recompilation` (the guard that holds it to
that).
It must not import `engine` or `drafting`, and knows no gRPC.
"""
