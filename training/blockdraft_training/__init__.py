"""`blockdraft train`: corpora of the target's own completions, drafters trained on them.

Read in the order of a run: `corpus/` (prompts in, rows of the target's completions out), `batches`
(rows side by side), `target` and `feature_cache` (what the frozen target computes of them),
`methods/` (what each draft method learns from a batch), `loop/` (the steps), `export` (the result);
`online/` learns while a drafter serves. Each may import the ones before it, and all may import
`settings` and `errors`. `command` and `learn_command` are the command lines. Nothing here imports
gRPC.
"""
