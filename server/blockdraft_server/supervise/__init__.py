"""`blockdraft serve`: all processes of one host, started, watched, restarted and stopped.

Read `settings` (what it is told), `command` (run and signals), `plan` (which processes with which
flags), `find_drafter` (whether there is one to start), `supervisor` (the loop), `child` (one
process), `restart` (when to try again), `die_with_parent` (no orphans), `shared_port` (whether
several servers may have it), `training` (whether `--learn` can be had), `announcement` (the line
that says it is ready). It talks to its children over gRPC only.
"""
