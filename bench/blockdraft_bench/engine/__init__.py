"""Verifier and drafter in this process, as a function from requests to completions.

Read `decoding` (the engine, its link to the drafter without a wire, its models and their size),
`samples` (what is asked, and the loop that asks), `divergence` (where completions part, and how
close the choice was there).
"""
