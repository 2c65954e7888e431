"""`bench kflat`: the cost of verifying K tokens against that of one, measured and modelled.

Read `curve` (the least cost of a step, and the summary of a curve), `measure` (timing, the
roofline, and steps compiled for chips that are not there).
"""
