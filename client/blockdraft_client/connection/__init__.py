"""Where a server is and how to talk to it.

Read `options` (what a caller may set), `endpoint` (the same, made complete) and `channel` (as
gRPC wants to hear it); `address` says which servers are on this machine. Nothing here opens a
connection, nor knows of prompts and answers.
"""
