"""Answers to many prompts at once, with a batch that stays full.

Read `generator` (what goes in and out; finished rows take the next prompt), `step` (the compiled
computations, with the choice of tokens that serving makes) and `attention` (their dense KV cache).
It knows nothing of corpora or training.
"""
