"""One unbroken token stream out of as many verifier calls as it takes.

Read `router` first; `pool` knows the verifiers, `places` where they are, `target` which of them
serve the same, `link` is the connection to one, `decode_stream` the call on it that all requests
share, `feed` what has come for one of them, `replay` what a request has to repeat after a failure,
`trials` finds out whether it is what kills verifiers, `usage` adds up what it consumed. Nothing
here knows of text.
"""
