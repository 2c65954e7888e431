"""The loop of the verifier: collect proposals, plan, verify, commit, ask for the next proposals.

Read `loop` first; `draft_lengths` chooses what to draft: how far by what `cost_model` expects of
it (from `step_times` and `acceptance`), and for whom by lookup (`lookups`, `match_acceptance`) as
`source_choice` finds fastest; `listeners` tells what was gained, `metrics` counts what happens, and
`step_watch` notices a step that never ends. It decides when things happen; what happens is decided
in `scheduling`, `drafting` and `device`. It knows no gRPC: callers come through `service`.
"""
