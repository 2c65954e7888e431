"""A JSON Schema as a verifier compiles it for a target's tokenizer."""

import json
import threading
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from blockdraft_models.tokenizer.tokenizer import load_tokenizer
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_protos.v1 import inference_pb2
from blockdraft_runtime.status import ServiceError
from blockdraft_server.constraints import grammar_of
from blockdraft_verifier.grammars import compilation as grammars


class GrammarRefusedError(ValueError):
    """A schema cannot be compiled; the message says why."""


def grammar_text(schema: Any) -> str:
    """Return the grammar of a schema; its own `x-guidance` wins."""
    try:
        return grammar_of(inference_pb2.OutputConstraint(json_schema=json.dumps(schema)), {})
    except ServiceError as error:
        raise _refused(error) from error


def tokenizer_of(target: str) -> LLTokenizer:
    """Return a target's tokenizer as grammars want it."""
    return grammars.tokenizer_of(target, load_tokenizer(resolve_target(target)).vocab_size)


def compiled(text: str, tokenizer: LLTokenizer) -> LLMatcher:
    """Return a matcher at the beginning of a grammar; its first mask has been computed once."""
    outcomes: list[LLMatcher | ServiceError] = []

    def compile_here() -> None:
        try:
            outcomes.append(grammars.compiled(text, tokenizer))
            grammars.check_ends(text, tokenizer)
        except ServiceError as error:
            outcomes.append(error)

    usual = threading.stack_size(grammars.STACK_BYTES)
    thread = threading.Thread(target=compile_here)
    thread.start()
    threading.stack_size(usual)
    thread.join()
    outcome = outcomes[-1]
    if isinstance(outcome, ServiceError):
        raise _refused(outcome)
    return outcome


def _refused(error: ServiceError) -> GrammarRefusedError:
    # Where in the schema it is would make a reason of its own of each.
    return GrammarRefusedError(error.message.rsplit(" at #", 1)[0])
