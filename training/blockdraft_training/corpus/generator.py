"""Completions to many prompts, with a batch that stays full: finished rows take the next prompt."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import DTypeLike

from blockdraft_models.decoder.model import Decoder
from blockdraft_models.decoder.sampling import seed_words
from blockdraft_models.executables import next_power_of_two
from blockdraft_training.corpus.decoding import (
    NO_TOKEN,
    RowPrompts,
    allocate,
    continue_rows,
    free_rows,
    start_rows,
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
        """Return the padded length of a prompt, in tokens."""
        return max(SHORTEST_PADDED_PROMPT, next_power_of_two(tokens))

    @property
    def starts(self) -> int:
        """Number of prompts run at once: of many rows, several finish at a time."""
        return max(1, self.rows // 32)

    @property
    def capacity(self) -> int:
        """Positions each row needs."""
        longest = self.max_prompt_tokens
        return max(self.padded_length(longest), longest + self.max_tokens)


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt to answer, and how its completion is sampled."""

    id: str  # the caller's name for it
    prompt: tuple[int, ...]  # token ids
    temperature: float  # 0 for greedy
    seed: int  # of the Gumbel noise
    max_tokens: int | None = None  # longest completion; None for the batch's


@dataclass(frozen=True, slots=True)
class FinishedCompletion:
    """A completion that has finished: with its end token, or cut for its length."""

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
                prompts = self._row_prompts({0: request}, padded)
                self._starts[padded] = start_rows.lower(*state, prompts, self._ends).compile()
        if self._steps is None and requests:
            self._steps = continue_rows.lower(*state, self._ends, steps=self._shape.steps).compile()

    def generate(self, requests: Sequence[Request]) -> Iterator[FinishedCompletion]:
        """Answer all requests, which must fit; yields completions as they finish.

        Every completion depends on its own request only, as far as steps are batch-invariant.
        """
        self.prepare(requests)
        # Greedy ones first: Gumbel noise is computed for the whole batch if one row needs it. Then
        # the shorter ones: those that start together are padded to the same length.
        waiting = deque(
            sorted(requests, key=lambda request: (request.temperature > 0, len(request.prompt)))
        )
        completions: dict[int, tuple[Request, list[int]]] = {}
        while waiting or completions:
            free = [row for row in range(self._shape.rows) if row not in completions]
            while waiting and len(free) >= (together := min(self._shape.starts, len(waiting))):
                begun = {free.pop(0): waiting.popleft() for _ in range(together)}
                self._begin(begun)
                completions.update((row, (request, [])) for row, request in begun.items())
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
                    yield FinishedCompletion(request, tuple(completion), cut=not ended)

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

    def _begin(self, begun: Mapping[int, Request]) -> None:
        padded = max(self._shape.padded_length(len(request.prompt)) for request in begun.values())
        self._caches, self._rows = self._starts[padded](
            self._weights, self._caches, self._rows, self._row_prompts(begun, padded), self._ends
        )

    def _row_prompts(self, begun: Mapping[int, Request], padded: int) -> RowPrompts:
        count = self._shape.starts
        token_ids = np.zeros((count, padded), np.int32)
        length = np.ones(count, np.int32)
        row = np.full(count, self._shape.rows, np.int32)
        max_tokens = np.ones(count, np.int32)
        temperature = np.zeros(count, np.float32)
        seed = np.zeros((count, 2), np.uint32)
        for place, (number, request) in enumerate(begun.items()):
            token_ids[place, : len(request.prompt)] = request.prompt
            length[place], row[place] = len(request.prompt), number
            max_tokens[place], temperature[place] = self._limit(request), request.temperature
            seed[place] = seed_words(request.seed)
        return RowPrompts(*jax.device_put((token_ids, length, row, max_tokens, temperature, seed)))
