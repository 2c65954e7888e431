"""A corpus: completions of the target to prompts, as token ids, one JSON object a line.

Read `rows` (what is in the files, and writing them so that a run can be resumed), `maker` (prompts
in, rows out), `prompts` (prompt files, test sets kept out), `conversations` (what is said in turn,
also by a target that makes up the user's part), `generator` and `decoding` (completions to many
prompts at once), `lines` (files of whole lines).
"""
