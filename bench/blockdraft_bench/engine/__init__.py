"""Verifier and drafter in this process, as a function from requests to completions.

Read `decoding` (the engine, its link to the drafter without a wire, its models and their size),
`samples` (the requests, and the loop that makes them), `divergence` (where completions first
differ, and by which margin).
"""
