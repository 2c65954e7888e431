"""The fewest tokens a compiled step may have, so that short steps round like longer ones."""

# By JAX's name of the platform, for every element type:
#
# * cpu: how a row is rounded is the products' own business there (docs/adr/0018).
# * tpu: a step of one token is compiled for another unit, which rounds differently; and a lone
#   sequence with blocks of up to 16 then has a single program for plain and for drafted steps
#   (docs/adr/0019).
# * gpu: not known; nothing was measured there.
_LEAST_TOKENS = {"cpu": 1, "tpu": 16, "gpu": 1}


def least_step_tokens(setting: int | None, platform: str) -> int:
    """Return the fewest tokens of a compiled step; shorter steps are padded.

    Args:
        setting: What the user wants; None for what the platform needs.
        platform: JAX's name of it, such as "tpu".
    """
    return _LEAST_TOKENS.get(platform, 1) if setting is None else setting
