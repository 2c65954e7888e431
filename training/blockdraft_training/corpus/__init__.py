"""A corpus: answers of the target to prompts, as token ids, one JSON object a line.

Read `rows` (what is in the files), `maker` (prompts in, rows out), `prompts` and `self_chat`
(where prompts come from), `conversations` (what follows an answer), `contamination` (test sets kept
out), `requests` (how each row is sampled), `writer` and `line_file` (resumable writing),
`progress`; `command` and `settings` are `blockdraft train corpus`. It must not import features,
methods or the loop.
"""
