"""A corpus: completions of the target to prompts, as token ids, one JSON object a line.

Read `rows` (the files, written so that a run can be resumed), `maker` (prompts in, rows out),
`prompts` (prompt files, test sets kept out), `conversations` (several turns, also by a target that
makes up the user's part), `generator` and `decoding` (completions of many prompts at once), `lines`
(files of whole lines).
"""
