"""`bench link`: what the link between verifier and drafter costs, without a model on either side.

Read `command` (settings), `exchange` (one round trip of the verifier's side), `drafter_process`
(the other side), `transports` (the ways between them), `measure` (all points in rounds), `report`
(what is said of it). It must not import another measurement.
"""
