"""Batch invariance, driven hard: one text computed in many ways, compared bit by bit."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from blockdraft_verifier.device.buckets import Bucket, bucket_for
from blockdraft_verifier.device.runner import ModelRunner
from blockdraft_verifier.scheduling.row import Row
from blockdraft_verifier.scheduling.sequence import GenerationRequest, TokenSequence


@dataclass
class Copy:
    """The text being computed once more, in pages of its own."""

    pages: list[int]  # where its keys and values go
    slot: int = 0  # where its state is
    done: int = 0  # positions computed
    # What the model said after positions, as bytes.
    log_probs: dict[int, bytes] = field(default_factory=dict)


class Contract:
    """Computes one text one token at a time, then in random ways, and compares."""

    def __init__(self, runner: ModelRunner, text: Sequence[int]) -> None:
        """Compute the reference: plain decoding, in the smallest step."""
        self.runner = runner
        self.text = tuple(text)
        self.size = runner.settings.page_size
        self.page_count = -(-len(text) // self.size)
        self.reference = Copy(list(range(self.page_count)))
        while self.reference.done < len(text):
            self.advance([self.reference], [1], runner.buckets[0])
        self.kept = self.read(self.reference)

    def check(self, seed: int) -> None:
        """Compute copies of the text side by side, in chunks of random sizes, and compare."""
        rng = np.random.default_rng(seed)
        widest = max(bucket.rows for bucket in self.runner.buckets)
        pages = rng.permutation(np.arange(self.page_count, self.runner.settings.num_pages))
        most = min(widest, len(pages) // self.page_count)
        copies = [
            Copy([int(page) for page in pages[i * self.page_count :][: self.page_count]], i)
            for i in range(int(rng.integers(1, most + 1)))
        ]
        largest = max(bucket.tokens for bucket in self.runner.buckets)
        while unfinished := [copy for copy in copies if copy.done < len(self.text)]:
            rng.shuffle(unfinished)
            rows = unfinished[: int(rng.integers(1, len(unfinished) + 1))]
            budget = min(int(2 ** rng.uniform(0, np.log2(largest) + 1)), largest)
            sizes: list[int] = []
            for row in rows:
                left = budget - sum(sizes) - (len(rows) - len(sizes) - 1)
                most_here = max(1, min(left, len(self.text) - row.done))
                sizes.append(int(rng.integers(1, most_here + 1)))
            smallest = bucket_for(self.runner.buckets, len(rows), sum(sizes))
            fitting = [b for b in self.runner.buckets if _fits(b, smallest)]
            # Up to a whole draft of every second step is wrong.
            most_wrong = int(rng.integers(0, 2)) * (self.runner.max_block - 1)
            wrong = [int(rng.integers(0, min(size - 1, most_wrong) + 1)) for size in sizes]
            self.advance(rows, sizes, fitting[int(rng.integers(0, min(3, len(fitting))))], wrong)
        for copy in copies:
            for layer, (found, expected) in enumerate(zip(self.read(copy), self.kept, strict=True)):
                np.testing.assert_array_equal(found, expected, f"layer {layer}, seed {seed}")
            for position, said in copy.log_probs.items():
                assert said == self.reference.log_probs[position], (position, seed)

    def advance(
        self,
        copies: Sequence[Copy],
        sizes: Sequence[int],
        bucket: Bucket,
        wrong: Sequence[int] | None = None,
    ) -> None:
        """Compute the next positions of each copy in one step, the last of them in vain."""
        rows, in_vain = [], wrong or [0] * len(sizes)
        for copy, size, rejected in zip(copies, sizes, in_vain, strict=True):
            stop = copy.done + size
            tokens = list(self.text[copy.done : stop])
            for place in range(size - rejected, size):
                tokens[place] = (tokens[place] + 1) % self.runner.model.vocab_size
            drafted = min(size, self.runner.max_block) - 1
            request = GenerationRequest("contract", self.text[:stop], log_probs=20)
            sequence = TokenSequence(0, request, 0.0, pages=copy.pages, state_slot=copy.slot)
            rows.append(Row(sequence, copy.done, tuple(tokens), drafted))
        said = [np.asarray(array) for array in self.runner.run_in(bucket, rows).log_probs]
        choice = 0
        for copy, row, rejected in zip(copies, rows, in_vain, strict=True):
            end = copy.done + len(row.token_ids)
            copy.done = end - rejected
            for position in range(end - row.draft_count - 1, end):
                if position < copy.done:
                    copy.log_probs[position] = b"".join(part[choice].tobytes() for part in said)
                choice += 1

    def read(self, copy: Copy) -> list[np.ndarray]:
        """Return the keys and values of all positions, layer by layer."""
        layers = self.runner.read_pages(copy.pages)
        return [layer.reshape(-1, *layer.shape[2:])[: len(self.text)] for layer in layers]


def _fits(bucket: Bucket, smallest: Bucket) -> bool:
    return (
        bucket.rows >= smallest.rows
        and bucket.tokens >= smallest.tokens
        and bucket.choices >= smallest.choices
    )
