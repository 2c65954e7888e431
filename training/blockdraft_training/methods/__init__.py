"""What is learnt: how each draft method drafts in training, where it starts, how wrong it is.

Read `recipe` (what the loop must know of a method), `dflash` and `eagle3` (the two: many drafts in
one pass, weights copied from the target), `objective` (anchors, labels, loss).
"""
