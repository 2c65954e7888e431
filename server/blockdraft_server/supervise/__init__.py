"""`blockdraft serve`: all processes of one host, started, watched, restarted and stopped.

Read `plan` (its settings, which processes with which flags), `ports` (whether they are free),
`command` (checks, run, signals), `supervisor` (the loop, and when to restart), `child` (one process
and its output), `die_with_parent` (no orphans). It talks to its children over gRPC only.
"""
