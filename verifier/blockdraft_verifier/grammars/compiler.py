"""Compiles the grammars of requests: off the event loop, within bounds, and each one once."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue

import grpc
from llguidance import LLMatcher, LLTokenizer

from blockdraft_models.errors import TokenizerError
from blockdraft_runtime.status import ServiceError
from blockdraft_verifier.grammars.compilation import (
    FIELD,
    MAX_GRAMMAR_BYTES,
    STACK_BYTES,
    compiled,
    invalid,
    overloaded,
)
from blockdraft_verifier.grammars.fair_queue import FairQueue
from blockdraft_verifier.grammars.trial import GrammarTrial
from blockdraft_verifier.scheduling.grammar import GrammarError, followed

# Waiting and compiling. A trial limits the time of a grammar itself, so that more is overload.
MAX_COMPILE_SECONDS = 30.0
# Grammars of one tenant that wait for a thread.
MAX_WAITING = 256
_THREADS = 2
_KEPT = 64


class _Compiled:
    """A grammar that several callers may wait for."""

    future: asyncio.Future[LLMatcher]
    callers = 1


class GrammarCompiler:
    """Makes matchers of grammars in llguidance's JSON format, for one tokenizer."""

    def __init__(self, tokenizer: Callable[[], LLTokenizer]) -> None:
        """Compile for the tokenizer that is returned at the first grammar.

        It raises a `TokenizerError` if there is none.
        """
        self._load_tokenizer = tokenizer
        self._trials: SimpleQueue[GrammarTrial] = SimpleQueue()
        for _ in range(_THREADS):
            self._trials.put(GrammarTrial(tokenizer))
        self._tokenizer: LLTokenizer | None = None
        # In order of use.
        self._compiled: OrderedDict[str, _Compiled] = OrderedDict()
        usual = threading.stack_size(STACK_BYTES)
        self._threads = ThreadPoolExecutor(_THREADS, "grammars")
        # A thread begins only when all others are at work.
        begun = threading.Barrier(_THREADS)
        for thread in [self._threads.submit(begun.wait) for _ in range(_THREADS)]:
            thread.result()
        threading.stack_size(usual)
        self._queue = FairQueue(self._threads, _THREADS)

    async def compile(
        self, grammar: str, tenant: bytes = b"", output: Sequence[int] = ()
    ) -> LLMatcher:
        """Return a matcher after an output, or raise a `ServiceError`; tenants take turns."""
        if len(grammar.encode()) > MAX_GRAMMAR_BYTES:
            raise invalid(f"it has more than {MAX_GRAMMAR_BYTES} bytes as a grammar")
        try:
            async with asyncio.timeout(MAX_COMPILE_SECONDS):
                matcher = await self._shared(grammar, tenant)
        except TimeoutError:
            raise overloaded(f"this one waited {MAX_COMPILE_SECONDS:g} s") from None
        if not output:
            return matcher
        try:
            return await self._queue.submit(tenant, partial(followed, matcher, output))
        except GrammarError:
            return await self.compile_alone(grammar, tenant, output)

    async def compile_alone(self, grammar: str, tenant: bytes, output: Sequence[int]) -> LLMatcher:
        """Return a matcher after an output that shares its lexer with no other.

        The matcher that others share so far is given to no more callers: something may have
        exhausted its lexer. `GrammarError` if the output cannot be followed.
        """
        self._compiled.pop(grammar, None)
        return await self._queue.submit(tenant, lambda: followed(self._compile(grammar), output))

    async def _shared(self, grammar: str, tenant: bytes) -> LLMatcher:
        entry = self._compiled.get(grammar)
        if entry is None:
            if self._queue.waiting(tenant) >= MAX_WAITING:
                raise overloaded(f"{MAX_WAITING} wait to be compiled")
            entry = self._compiled[grammar] = _Compiled()
            entry.future = self._queue.submit(tenant, partial(self._compile, grammar, entry))
            entry.future.add_done_callback(partial(self._keep, grammar, entry))
        else:
            entry.callers += 1
        self._compiled.move_to_end(grammar)
        try:
            return await asyncio.shield(entry.future)
        finally:
            entry.callers -= 1
            # A future that is done is not cancelled.
            if not entry.callers and entry.future.cancel():
                self._forget(grammar, entry)

    def _keep(self, grammar: str, entry: _Compiled, future: asyncio.Future[LLMatcher]) -> None:
        """Keep a compiled grammar unless it failed, and drop those used longest ago."""
        if future.cancelled() or future.exception() is not None:
            self._forget(grammar, entry)
        while len(self._compiled) > _KEPT:
            self._compiled.popitem(last=False)

    def _forget(self, grammar: str, entry: _Compiled) -> None:
        if self._compiled.get(grammar) is entry:
            del self._compiled[grammar]

    def _compile(self, grammar: str, entry: _Compiled | None = None) -> LLMatcher:
        """Compile a grammar; where callers wait for it, try it first: they may leave meanwhile."""
        if self._tokenizer is None:
            try:
                self._tokenizer = self._load_tokenizer()
            except TokenizerError as error:
                raise ServiceError(
                    grpc.StatusCode.FAILED_PRECONDITION,
                    "CONSTRAINTS_UNSUPPORTED",
                    f"the target's tokenizer cannot be used for constraints: {error}",
                    field=FIELD,
                ) from error
        if entry is not None:
            trial = self._trials.get()
            try:
                trial(grammar)
            finally:
                self._trials.put(trial)
            if not entry.callers:
                raise invalid("nobody waits for it")
        # It takes as long as it did there.
        return compiled(grammar, self._tokenizer)
