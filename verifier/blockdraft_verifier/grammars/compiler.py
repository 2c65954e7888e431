"""Compiles the grammars of requests: off the event loop, within bounds, and each one once."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
)
from blockdraft_verifier.grammars.trial import GrammarTrial

# For starting a trial and waiting for one; what a grammar may take itself is its limit.
MAX_COMPILE_SECONDS = 30.0
_THREADS = 2
_KEPT = 64


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
        self._compiled: OrderedDict[str, asyncio.Future[LLMatcher]] = OrderedDict()
        usual = threading.stack_size(STACK_BYTES)
        self._threads = ThreadPoolExecutor(_THREADS, "grammars")
        # A thread begins only when all others are at work.
        begun = threading.Barrier(_THREADS)
        for thread in [self._threads.submit(begun.wait) for _ in range(_THREADS)]:
            thread.result()
        threading.stack_size(usual)

    async def compile(self, grammar: str) -> LLMatcher:
        """Return a matcher at the beginning of a grammar, or raise a `ServiceError`."""
        if len(grammar.encode()) > MAX_GRAMMAR_BYTES:
            raise invalid(f"it has more than {MAX_GRAMMAR_BYTES} bytes as a grammar")
        compiling = self._compiled.get(grammar)
        if compiling is None:
            loop = asyncio.get_running_loop()
            compiling = loop.run_in_executor(self._threads, self._compile, grammar)
            self._compiled[grammar] = compiling
            compiling.add_done_callback(lambda done: self._keep(grammar, done))
        else:
            self._compiled.move_to_end(grammar)
        try:
            # A caller that goes away must not end what others wait for.
            async with asyncio.timeout(MAX_COMPILE_SECONDS):
                return await asyncio.shield(compiling)
        except TimeoutError:
            raise invalid(f"it did not compile within {MAX_COMPILE_SECONDS} s") from None

    def _keep(self, grammar: str, done: asyncio.Future[LLMatcher]) -> None:
        """Keep what was compiled, but for errors and what was used longest ago."""
        if done.cancelled() or done.exception() is not None:
            self._compiled.pop(grammar, None)
        while len(self._compiled) > _KEPT:
            self._compiled.popitem(last=False)

    def _compile(self, grammar: str) -> LLMatcher:
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
        trial = self._trials.get()
        try:
            trial(grammar)
        finally:
            self._trials.put(trial)
        # It takes as long as it did there.
        return compiled(grammar, self._tokenizer)
