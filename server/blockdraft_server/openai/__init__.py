"""OpenAI's HTTP API, in the process of the server: a third face of `InferenceService`.

* `http_server`: HTTP, keys, TLS, errors
* `requests`, `tools`, `structured_outputs`: from JSON to our requests
* `responses`, `output_parser`: from our messages to JSON
"""
