"""A corpus: answers of the target to prompts, as token ids, one JSON object a line.

Read `rows` (what is in the file), `maker` (prompts in, rows out), `prompts`, `self_chat` and
`user_turn` (where prompts come from), `contamination` (test sets kept out), `writer` and
`line_file` (resumable writing), `answer_seeds` (how each row is sampled), `progress`;
`command` and `settings` are `blockdraft train corpus`.
"""
