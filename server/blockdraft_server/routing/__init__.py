"""One unbroken token stream out of as many verifier calls as it takes.

Read `router` first; `pool` holds the verifiers, their target and the one that is kept for a trial;
`places` has their addresses, `link` the connection to one, `verifier_stream` the call on it that
all requests share, `feed` the messages for one of them, `replay` the state that a request has to
repeat after a failure, and its usage. Nothing here knows of text.
"""
