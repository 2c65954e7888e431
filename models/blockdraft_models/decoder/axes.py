"""Logical names of weight axes; a deployment maps them to mesh axes (`sharding.py`)."""

VOCAB = "vocab"
EMBED = "embed"
HEADS = "heads"
KV_HEADS = "kv_heads"
MLP = "mlp"
LAYERS = "layers"

Axes = tuple[str | None, ...]
