"""`bench kflat`: what verifying K tokens costs against verifying one; measured and modelled.

Read `cost` (what a step needs at least), `curve` (what a curve says, as rows, page and figure),
`measure` (timing, and the roofline), `modelled` (compiled for chips that are not there).
"""
