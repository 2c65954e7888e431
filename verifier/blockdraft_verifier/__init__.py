"""The target model, its paged KV cache and the loop that verifies drafts.

The verifier owns all truth about a sequence. Read it downwards: `command`, `app` and `service` (a
process that serves gRPC), `decode_stream` (what a server asks for and has not been sent yet),
`requests` (wire to request and back), `grammars` (what outputs must look like), `loading` and
`computation` (the target, and what tokens depend on as one identity), `engine` (the loop),
`exactness` and `self_test` (whether all compiled steps are batch-invariant), `drafting` (what the
drafter is sent and asked), `device` (the step on the device), `scheduling` (which tokens run next),
`prompt_lookup` (drafts from earlier text), `slice` (one verifier on several hosts). Each imports
only what comes after it. Nothing here imports server or drafter.
"""
