"""The front door: text in, text out.

The life of a request, in the order of reading: `service` (the public API), `auth` and
`undecodable` (who and what is turned away), `request` and `prompts` (checks, defaults, token
ids), `admission` (how many), `routing/` (which verifier, and again after a failure), `answer/`
(tokens to text). `supervise/` is `blockdraft serve`. Nothing here imports verifier, drafter or
JAX.
"""
