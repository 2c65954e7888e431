"""`bench kflat`: the cost of verifying K tokens against that of one.

Read `curve` (the least cost of a step, and the summary of a curve), `measure` (timing, and the
roofline).
"""
