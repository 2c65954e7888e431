"""The front door: text in, text out.

Read `service` first: it is the public API, and its `_answer` the life of a request. The rest in
the order in which a request meets it: `access/` (who is let in, and how many of them), `sizes`
with `encoded` (what is turned away), `request` and `prompts` (checks, defaults, token ids),
`routing/` (which verifier, and again after a failure), `answer/` (tokens to text), `metrics` and
`traces`. `tokenizer` is what is asked of the target's tokenizer, `app` wires the parts to a
process, `command` runs it.
`supervise/` is `blockdraft serve`. Nothing here imports verifier, drafter or JAX.
"""
