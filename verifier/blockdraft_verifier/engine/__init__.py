"""The loop of the verifier: collect drafts, plan, verify, commit, ask for the next drafts.

Read `loop` first. `policy` decides what to draft: for whom, how far and by whom, by what
`cost_model` expects of it. What is learned for that is in `acceptance` (of drafts, and of what
prompt lookup finds) and `costs` (seconds). `listeners` tells what was gained, `metrics` counts what
happens, `guards` notice a step that never ends and a shape that is compiled late, and `state` shows
all of it to a person. It decides when things happen; what happens is decided in `scheduling`,
`drafting` and `device`. It knows no gRPC: callers come through `service`.
"""
