"""What the frozen target says about a corpus, and the batches made of it.

Read `target_pass` (features and choices of whole sequences), `cache` (those of a corpus on disk),
`batches` (rows side by side, by seed and number alone) and `frozen` (what a training step reads
of the target, and the pass inside the step for accelerators). It must not import methods or loop.
"""
