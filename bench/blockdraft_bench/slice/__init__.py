"""`bench slice`: what announcing a step to the other processes of a slice costs, without a model.

Read `command` (settings), `measure` (leader and followers), `report` (what is said of it). It must
not import another measurement.
"""
