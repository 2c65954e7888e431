"""Making drafters: corpora of the target's own answers, training on them, export."""
