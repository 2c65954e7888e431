"""What is learnt: how each draft method drafts in training, where it starts, how wrong it is.

Read `recipe` (what the loop must know of a method), `dflash` and `eagle3` (the two recipes),
`blocks` and `chains` (many drafts in one pass, as each method makes them), `objective` (anchors,
labels, loss), `initialize` (weights copied from the target). It must not import the loop.
"""
