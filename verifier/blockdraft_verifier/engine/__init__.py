"""The loop of the verifier: collect proposals, plan, verify, commit, ask for the next proposals.

Read `loop` first; `cost_model` chooses how far to draft, `occupancy` says how busy the engine
is, `metrics` counts what it does. It decides when things happen; what happens is decided in
`scheduling`, `drafting` and `device`. It knows no gRPC: callers come through `service`.
"""
