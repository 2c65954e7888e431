"""The draft methods in training: how each drafts, where its weights start, and its loss.

Read `recipe` (the interface of a method to the loop), `dflash` and `eagle3` (the two methods: many
drafts in one pass, weights copied from the target), `objective` (anchors, labels, loss).
"""
