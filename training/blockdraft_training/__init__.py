"""`blockdraft train`: corpora of the target's own answers, drafters trained on them.

Read in the order of a run: `generation/` (answers to many prompts at once), `corpus/` (prompts
in, rows of answers out), `features/` (what the frozen target says of each row, and the batches
made of it), `methods/` (what each draft method learns from a batch), `loop/` (the steps), then
`export` and `card` (the result). Each may import those named before it. `settings` is what a run
is told; the modules called command are the command line. Nothing here imports gRPC.
"""
