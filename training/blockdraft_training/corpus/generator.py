"""Completions to many prompts, with a batch that stays full: finished rows take the next prompt."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import DTypeLike

from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.sampling import seed_words
from blockdraft_training.corpus.decoding import (
    NO_TOKEN,
    RowPrompt,
    allocate,
    continue_rows,
    free_rows,
    start_row,
)

# Prompts are padded to powers of two from here on: below, all cost the same.
SHORTEST_PADDED_PROMPT = 32


@dataclass(frozen=True, slots=True)
class BatchShape:
    """Shapes of the compiled computations."""

    rows: int  # completions in the making at once
    max_prompt_tokens: int  # longest prompt
    max_tokens: int  # longest completion
    # Tokens per row and dispatch. More cost less time between dispatches and leave finished rows
    # idle for longer.
    steps: int = 8

    def padded_length(self, tokens: int) -> int:
        """Return to how many tokens a prompt is padded."""
        return max(SHORTEST_PADDED_PROMPT, 1 << (tokens - 1).bit_length())

    @property
    def capacity(self) -> int:
        """Positions each row needs."""
        longest = self.max_prompt_tokens
        return max(self.padded_length(longest), longest + self.max_tokens)


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt to be answered, of which the completion is a function."""

    id: str  # the caller's name for it
    prompt: tuple[int, ...]  # token ids
    temperature: float  # 0 for greedy
    seed: int  # of the Gumbel noise
    max_tokens: int | None = None  # longest completion; None for the batch's


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request: the completion with its end token, or cut for its length."""

    request: Request
    token_ids: tuple[int, ...]
    cut: bool


class BatchGenerator:
    """Holds weights and cache on the device and answers requests."""

    def __init__(
        self, decoder: Decoder, shape: BatchShape, end_ids: Sequence[int], *, dtype: DTypeLike
    ) -> None:
        """Allocate the cache, of type `dtype`."""
        self._graph, self._weights = nnx.split(decoder)
        self._shape = shape
        self._end_ids = frozenset(end_ids)
        self._ends = jnp.asarray(tuple(end_ids), jnp.int32)
        self._caches = allocate(
            decoder.config, rows=shape.rows, capacity=shape.capacity, dtype=dtype
        )
        self._rows = free_rows(shape.rows)
        # Compiled, by padded length.
        self._starts: dict[int, Any] = {}
        self._steps: Any = None

    def prepare(self, requests: Sequence[Request]) -> None:
        """Compile the shapes of these requests; a ValueError says which of them does not fit."""
        for request in requests:
            self._check(request)
        state = (self._graph, self._weights, self._caches, self._rows)
        for request in requests:
            padded = self._shape.padded_length(len(request.prompt))
            if padded not in self._starts:
                prompt = self._row_prompt(0, request, padded)
                self._starts[padded] = start_row.lower(*state, prompt, self._ends).compile()
        if self._steps is None and requests:
            self._steps = continue_rows.lower(*state, self._ends, steps=self._shape.steps).compile()

    def generate(self, requests: Sequence[Request]) -> Iterator[Completion]:
        """Answer all requests, which must fit; yields completions as they finish.

        Every completion depends on its own request only, as far as steps are batch-invariant.
        """
        self.prepare(requests)
        # Greedy ones first: Gumbel noise is computed for the whole batch if one row needs it.
        waiting = deque(sorted(requests, key=lambda request: request.temperature > 0))
        completions: dict[int, tuple[Request, list[int]]] = {}
        while waiting or completions:
            for row in range(self._shape.rows):
                if row not in completions and waiting:
                    request = waiting.popleft()
                    self._begin(row, request)
                    completions[row] = (request, [])
            self._caches, self._rows, chosen = self._steps(
                self._weights, self._caches, self._rows, self._ends
            )
            tokens = np.asarray(chosen)
            for row, (request, completion) in list(completions.items()):
                # The first line repeats the newest token, which is new only to a fresh row.
                column = tokens[0 if not completion else 1 :, row]
                completion.extend(int(token) for token in column if token != NO_TOKEN)
                ended = completion[-1] in self._end_ids
                if ended or len(completion) == self._limit(request):
                    del completions[row]
                    yield Completion(request, tuple(completion), cut=not ended)

    def _limit(self, request: Request) -> int:
        return self._shape.max_tokens if request.max_tokens is None else request.max_tokens

    def _check(self, request: Request) -> None:
        prompt, limit = len(request.prompt), self._limit(request)
        if not 1 <= prompt <= self._shape.max_prompt_tokens:
            raise ValueError(
                f"prompt {request.id} has {prompt} tokens, not 1 to {self._shape.max_prompt_tokens}"
            )
        if limit < 1 or prompt + limit > self._shape.capacity:
            raise ValueError(
                f"{prompt} tokens of prompt {request.id} and {limit} of its completion do not fit"
                f" into {self._shape.capacity}"
            )

    def _begin(self, row: int, request: Request) -> None:
        padded = self._shape.padded_length(len(request.prompt))
        prompt = self._row_prompt(row, request, padded)
        self._caches, self._rows = self._starts[padded](
            self._weights, self._caches, self._rows, prompt, self._ends
        )

    def _row_prompt(self, row: int, request: Request, padded: int) -> RowPrompt:
        length = len(request.prompt)
        token_ids = np.zeros(padded, np.int32)
        token_ids[:length] = request.prompt
        return RowPrompt(
            jnp.asarray(token_ids),
            jnp.int32(length),
            jnp.int32(row),
            jnp.int32(self._limit(request)),
            jnp.float32(request.temperature),
            jnp.asarray(seed_words(request.seed)),
        )
