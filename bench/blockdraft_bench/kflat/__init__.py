"""`bench kflat`: what verifying K tokens costs against verifying one; measured and modelled.

Read `settings` (which steps), `curve` (what a curve says), `decoder_cost` (what a step needs at
least), `measure` (timing, with `device_probe` for the roofline), `modelled` (compiled for chips
that are not there), then `report` and `figure`. Nothing here imports another measurement.
"""
