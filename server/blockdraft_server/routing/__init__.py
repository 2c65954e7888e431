"""One unbroken token stream out of as many verifier calls as it takes.

Read `router` first; `pool` holds the verifiers, which of them serve the same and which is kept for
a trial; `places` is where they are, `link` the connection to one, `decode_stream` the call on it
that all requests share, `feed` the messages for one of them, `replay` the state that a request has
to repeat after a failure, and its usage. Nothing here knows of text.
"""
