"""What the frozen target says about a corpus, and the batches made of it.

`features` holds hidden states and choices of every position, kept on disk or computed in the
step; `frozen` is what training reads of the target; `batches` depend on seed and number alone.
"""
