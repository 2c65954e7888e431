"""The API server: text in, text out.

Read `service` first: it is the public API, and its `_generate` the life of a request. The rest in
the order in which a request meets it: `keys` (authentication), `sizes` (requests that are refused
unread), `request` and `prompts` (checks, defaults, token ids), `constraints` (what a completion
must look like), `admission` (how many at once), `routing/` (which verifier, and again after a
failure), `completion` (tokens to text), `metrics` and `traces`. `openai/` and `vllm/` are further
faces of it; their JSON is read by `json_fields`. `app` wires the parts to a process, `command`
runs it, `__main__` too; `keys_command` makes keys. `supervise/` is `blockdraft serve`. Nothing here
imports verifier, drafter or JAX.
"""
