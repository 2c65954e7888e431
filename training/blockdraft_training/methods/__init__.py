"""What is learnt: each draft method's blocks, objective, start and recipe.

Read `recipe` (what the loop must know of a method), `dflash` and `eagle3` (the two recipes),
`blocks` and `chains` (many drafts in one pass, as each method makes them), `scores` and
`objective` (logits, labels, loss), `initialize` (layers copied from the target).
It must not import the loop.
"""
