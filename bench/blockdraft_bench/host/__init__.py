"""`bench host`: the engine's own time per step, with a target and a drafter that take none.

Read `command` (settings), `steady_engine` (an engine all of whose sequences decode), `measure` (all
points in rounds), `report` (what is said of it). It must not import another measurement.
"""
