"""The shapes a step may have: powers of two, so that all of them can be compiled beforehand."""

from dataclasses import dataclass

from blockdraft_models.executables import next_power_of_two


@dataclass(frozen=True, slots=True)
class Bucket:
    """One compiled shape of a step."""

    rows: int  # sequences, padding included
    tokens: int  # tokens, padding included
    choices: int  # positions whose logits are computed

    def __str__(self) -> str:
        """Return the shape as people read it: rows x tokens."""
        return f"{self.rows}x{self.tokens}"

    def __lt__(self, bucket: "Bucket") -> bool:
        """Compare by what takes time: tokens, then choices, which rise with the rows."""
        return (self.tokens, self.rows) < (bucket.tokens, bucket.rows)


def all_buckets(
    max_rows: int, max_tokens: int, max_block: int, least_tokens: int = 1
) -> tuple[Bucket, ...]:
    """Return every shape a step of at most these sizes can be padded to, smallest first.

    Row counts rise fourfold, token counts double. Between two row counts there is one more shape,
    for steps of a token per row, which would else be padded to up to three times as many tokens.
    Logits are computed for whole blocks of every row, of at most `max_block` tokens with the
    anchor, but never for a long prompt chunk, of which only the last token matters. No shape has
    fewer than `least_tokens`.
    """
    least = next_power_of_two(least_tokens)
    row_sizes = [1]
    while row_sizes[-1] < max_rows:
        row_sizes.append(row_sizes[-1] * 4)
    row_sizes[-1] = min(row_sizes[-1], next_power_of_two(max_rows))
    # Not where short steps are padded on purpose: nothing says that fewer tokens are quicker there.
    halves = [rows // 2 for rows in row_sizes if rows > 2] if least == 1 else []
    buckets = [Bucket(rows, rows, rows) for rows in halves if rows not in row_sizes]
    for rows in row_sizes:
        tokens = max(rows, least)
        while True:
            choices = min(tokens, max(least, rows * next_power_of_two(max_block)))
            buckets.append(Bucket(rows, tokens, choices))
            if tokens >= max_tokens:
                break
            tokens *= 2
    # Padding rows cost nothing: of shapes that differ in rows alone, the widest serves for all.
    widest = {(bucket.tokens, bucket.choices): bucket for bucket in sorted(buckets)}
    return tuple(sorted(widest.values()))


def bucket_for(buckets: tuple[Bucket, ...], rows: int, tokens: int) -> Bucket:
    """Return the smallest bucket that holds `rows` rows and `tokens` tokens."""
    for bucket in buckets:
        if bucket.rows >= rows and bucket.tokens >= tokens:
            return bucket
    raise ValueError(f"no bucket for {rows} rows and {tokens} tokens")


# By JAX's name of the platform, for every element type:
#
# * cpu: products give a row the same bits in steps of any size (docs/adr/0057).
# * tpu: so they do there (docs/adr/0059). But a lone sequence with blocks of up to 16 has a single
#   program for plain and for drafted steps, and products take no longer for 16 rows than for one.
# * gpu: not known; nothing was measured there.
_LEAST_TOKENS = {"cpu": 1, "tpu": 16, "gpu": 1}


def least_step_tokens(platform: str) -> int:
    """Return the fewest tokens of a compiled step."""
    return _LEAST_TOKENS.get(platform, 1)
