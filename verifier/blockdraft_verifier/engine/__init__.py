"""The loop of the verifier: collect drafts, plan, verify, commit, ask for the next drafts.

Read `loop` first. `policy` decides what to draft: for which sequences, how many tokens and from
which source, by what `cost_model` expects of it; `repetitions` has what prompt lookup finds, and
`shares` divides a step. `acceptance` (of drafts, and of what is found) and `costs` (seconds) learn
what it needs. `ahead` launches a step before the one before it is read, `inbox` has what other
threads want done, `listeners` passes on what was gained, `metrics` counts what happens, `guards`
notices a step that never ends and a shape that is compiled late, and `state` shows all of it to a
person. The engine decides when things happen; what happens is decided in `scheduling`, `drafting`
and `device`. It knows no gRPC: callers come through `service`.
"""
