"""One unbroken token stream out of as many verifier calls as it takes.

Read `router` first; `pool` knows the verifiers, which of them serve the same and which is kept for
a trial, `places` where they are, `link` is the connection to one, `decode_stream` the call on it
that all requests share, `feed` what has come for one of them, `replay` what a request has to repeat
after a failure and what it consumed. Nothing here knows of text.
"""
