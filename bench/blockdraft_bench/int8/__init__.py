"""`bench int8`: how far int8 weights move a target's logits."""
