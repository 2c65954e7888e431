"""The target model, its paged KV cache and the loop that verifies drafts.

The verifier owns all truth about a sequence. Read it downwards: `command`, `app` and `service` (a
process with a gRPC face), `decode_stream` (what a server asks for and has not been sent yet),
`requests` (wire to request and back), `loading` and `computation` (the target, and what tokens
depend on as one identity), `engine` (the loop), `exactness` and `self_test` (whether all compiled
steps round alike), `drafting` (what the drafter is told and asked), `device` (the step on the
device), `scheduling` (which tokens run next), `prompt lookup` (what earlier text drafts), `slice` (one
verifier on several hosts). Each imports only what comes after it. Nothing here imports server or
drafter.
"""
