"""A request that is checked, tokenized and turned into the verifier's once for all completions."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from blockdraft_protos.v1 import verifier_pb2
from blockdraft_runtime.event_loop import aside
from blockdraft_server.prompts import check_prompt, prompt_token_ids
from blockdraft_server.request import (
    InferenceRequest,
    ModelLimits,
    check_length,
    sequence_request,
    with_next_seed,
)

if TYPE_CHECKING:
    from blockdraft_models.tokenizer.tokenizer import Tokenizer


class SharedRequest:
    """The checks and tokens that the completions of a request share; their seeds differ."""

    def __init__(
        self,
        request: InferenceRequest,
        max_prompt_bytes: int,
        limits: Callable[[], ModelLimits],
        threads: Executor,
    ) -> None:
        """Prepare a request that passed `check_request`; `limits` returns the current ones."""
        self._request = request
        self._max_prompt_bytes = max_prompt_bytes
        self._limits = limits
        self._threads = threads
        self._task: asyncio.Task[verifier_pb2.SequenceRequest] | None = None
        self._callers = 0
        self._prompt_bytes: int | None = None  # once they are checked

    def check(self) -> None:
        """Check the prompt as far as that needs no tokenizer."""
        if self._prompt_bytes is None:
            self._prompt_bytes = check_prompt(self._request.prompt, self._max_prompt_bytes)

    async def sequence(self, index: int, tokenizer: "Tokenizer") -> verifier_pb2.SequenceRequest:
        """Return the verifier's request of completion number `index`.

        When the last caller goes away, preparation that has not begun is dropped.
        """
        self._task = self._task or asyncio.ensure_future(self._prepared(tokenizer))
        self._callers += 1
        try:
            shared = await asyncio.shield(self._task)
        finally:
            self._callers -= 1
            if not self._callers and self._task.cancel():
                self._task = None
        return with_next_seed(shared, index)

    async def _prepared(self, tokenizer: "Tokenizer") -> verifier_pb2.SequenceRequest:
        request = self._request
        check_length(len(request.prompt.token_ids.values), self._limits())

        def prepare() -> verifier_pb2.SequenceRequest:
            return sequence_request(
                request,
                prompt_token_ids(request.prompt, tokenizer),
                # They may have changed meanwhile.
                self._limits(),
                tokenizer.eos_token_ids,
                tokenizer.encode_inner,
                tokenizer.control_tokens,
            )

        size = (self._prompt_bytes or 0) + request.sampling.ByteSize()
        return await aside(self._threads, size, prepare)
