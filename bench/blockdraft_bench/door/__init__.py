"""`bench door`: what server and SDK make of a verifier whose target takes a given time.

Read `command` (settings), `processes` (a verifier without a model and a server before it),
`callers` (streams that are read by the SDK), `measure` (all points in rounds), `report` (what is
said of it). It must not import another measurement.
"""
