"""The draft methods in training: how each drafts, where its weights start, and its loss.

Read `recipe` (the interface of a method to the loop), `dflash` and `eagle3` (the methods: each
trains many drafts in one pass, and begins with weights of the target), `objective` (anchors,
labels, loss).
"""
