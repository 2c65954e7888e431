"""Verifier and drafter in this process, as a function from requests to answers.

Read `decoding` first, then `in_process` (the link without a wire). It must not import a
measurement.
"""
