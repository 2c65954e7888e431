"""`bench decode`: plain decoding and each draft method, one answer at a time, side by side.

Read `command` (settings), `setup` (loading), `measure` (decoding), `speed` (what is summed up),
`divergence` (answers that differ), `report` (what is said of it), `figure`. It must not import
another measurement.
"""
