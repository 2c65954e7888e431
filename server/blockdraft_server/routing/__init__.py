"""One unbroken token stream out of as many verifier calls as it takes.

Read `stream` first; `pool` knows the verifiers and their health, `replay` what a request has to
repeat after a failure, `usage` adds up what it consumed. It knows nothing of text.
"""
