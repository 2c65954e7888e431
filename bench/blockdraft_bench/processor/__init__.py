"""`bench processor`: a row of the matrix of processors in docs/benchmarks.md.

Read `command` (settings), `measure` (one row, in a process that has the cores it is to use),
`report` (what is said of it). It must not import another measurement.
"""
