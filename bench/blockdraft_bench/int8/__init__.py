"""`bench int8`: how far int8 weights move a target's logits.

Read `command` (settings), `measure` (both sets of weights over the same answers), `logit_error`
(what is summed up), `report` (what is said of it). It must not import another measurement.
"""
