"""A JSON Schema as the grammar that a verifier is sent, compiled for a target's tokenizer."""

import json
import threading
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from blockdraft_models.tokenizer.published import published_files
from blockdraft_models.tokenizer.tokenizer import load_tokenizer
from blockdraft_models.weights.resolve import resolve_target

# As the server writes JSON.
SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# Schemas are compiled recursively, and the usual stack overflows with a thousand references.
_STACK_BYTES = 512 << 20


class GrammarRefusedError(ValueError):
    """A schema cannot be compiled; the message says why."""


def grammar_text(schema: Any) -> str:
    """Return the grammar of a schema; its own `x-guidance` wins."""
    if isinstance(schema, dict):
        schema = {"x-guidance": SPACING, **schema}
    return json.dumps({"grammars": [{"json_schema": schema}]})


def tokenizer_of(target: str) -> LLTokenizer:
    """Return a target's tokenizer as grammars want it."""
    path = resolve_target(target)
    ends = load_tokenizer(path).eos_token_ids
    definition = published_files(path)["tokenizer.json"].decode()
    return LLTokenizer(definition, eos_token=list(ends))


def compiled(text: str, tokenizer: LLTokenizer) -> LLMatcher:
    """Return a matcher at the beginning of a grammar; its first mask has been computed once."""
    found: list[LLMatcher] = []

    def compile_here() -> None:
        limits = LLParserLimits(verbose_errors=False)
        matcher = LLMatcher(tokenizer, text, log_level=0, limits=limits)
        # Schemas that nothing is valid under fail only here.
        matcher.compute_bitmask()
        found.append(matcher)

    usual = threading.stack_size(_STACK_BYTES)
    thread = threading.Thread(target=compile_here)
    thread.start()
    threading.stack_size(usual)
    thread.join()
    [matcher] = found
    if matcher.is_error():
        # Where in the schema it is would make a reason of its own of each.
        reason, *_ = matcher.get_error().split(" while processing ")
        raise GrammarRefusedError(" ".join(reason.split()))
    matcher.reset()
    return matcher
