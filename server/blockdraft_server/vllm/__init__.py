"""vLLM's gRPC engine protocol beside our own, so that gateways that speak it find a worker here.

Read `service` first. `mapping` turns a request into one of ours, so that there is one way through
the server, and our messages into vLLM's; `tokenizer_archive` holds the tokenizer's files for
gateways, which tokenize themselves.
"""
