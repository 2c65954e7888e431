"""`bench kflat`: what verifying K tokens costs against verifying one; measured and modelled.

Read `curve` (what a step needs at least, and what a curve says), `measure` (timing, the roofline,
and steps compiled for chips that are not there).
"""
