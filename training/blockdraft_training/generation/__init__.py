"""Answers to many prompts at once, with a batch that stays full.

Read `generator` (what goes in and out; finished rows take the next prompt), `step` (the compiled
computations), `attention` (their dense KV cache) and `choice` (the same choice of tokens that
serving makes). It knows nothing of corpora or training.
"""
