"""Compiles a grammar in llguidance's JSON format, unless it asks for what cannot be rolled back."""

import json
import re
from typing import Any

import grpc
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from blockdraft_models.errors import TokenizerError
from blockdraft_models.tokenizer.tokenizer import Tokenizer, load_tokenizer
from blockdraft_models.weights.resolve import resolve_target
from blockdraft_runtime.status import ServiceError, invalid_argument
from blockdraft_verifier.grammars.endless import endless
from blockdraft_verifier.grammars.schema_errors import failing_place

MAX_GRAMMAR_BYTES = 512 * 1024
"""Most bytes of a grammar; longer ones may exhaust the stack below."""
# llguidance recurses: a schema of 1,000 references in a row overflows the usual 8 MiB, which would
# end the process. Of the stack, only what is used takes memory.
STACK_BYTES = 512 << 20
# Attributes of a rule, whose name begins a line.
_NO_ROLLBACK = re.compile(r"(?m)^\s*[\w?!.-]+\s*\[[^\]]*\b(stop|suffix|max_tokens)\b")
_PART = frozenset(("name", "json_schema", "lark_grammar"))
# Tighter than the usual ones by 2.5 to 5 times: none of 771 real schemas needs as much, and what
# does takes seconds.
_LIMITS = LLParserLimits(
    initial_lexer_fuel=200_000,
    step_lexer_fuel=50_000,
    step_max_items=20_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)
RETRY_SECONDS = 1.0
FIELD = "sampling.constraint"
"""Name of the request's field with a grammar."""


def compiled(grammar: str, tokenizer: LLTokenizer) -> LLMatcher:
    """Return a matcher at the beginning of a grammar, or raise a `ServiceError`.

    The calling thread needs a stack of `STACK_BYTES`.
    """
    parts = _parts(grammar)
    _refuse_ends(parts, tokenizer)
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=_LIMITS)
    if wrong := _first_error(matcher):
        raise invalid(_explained(wrong, parts, tokenizer))
    matcher.reset()
    return matcher


def check_ends(grammar: str, tokenizer: LLTokenizer) -> None:
    """Refuse a grammar that compiles, but of which a part has no text that ends."""
    parts = _parts(grammar)
    for part in parts[1:]:
        if "lark_grammar" in part:
            rest = [other_part for other_part in parts if other_part is not part]
            alone = json.dumps({"grammars": [part, *rest]})
            if wrong := _first_error(LLMatcher(tokenizer, alone, log_level=0, limits=_LIMITS)):
                raise invalid(wrong)
    for schema in [part["json_schema"] for part in parts if "json_schema" in part]:
        if wrong := endless(schema):
            raise invalid(f"{wrong} at {failing_place(schema, endless)}")


class _Vocabulary:
    """A tokenizer as llguidance wants it.

    If llguidance read it from its file, all added tokens that look like tags would be control
    tokens, and Qwen's `<tool_call>` could not be text.
    """

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        control = {token: spelled.encode() for spelled, token in tokenizer.control_tokens.items()}
        self.eos_token_id = tokenizer.eos_token_ids[0]
        self.bos_token_id = tokenizer.bos_token_id
        self.special_token_ids = sorted(control)
        self.tokens = [control.get(token) or tokenizer.token_bytes(token) for token in range(size)]
        self._tokenizer = tokenizer

    def __call__(self, text: bytes) -> list[int]:
        """Return the usual tokens of a text that may end within a character."""
        return self._tokenizer.encode_inner(text.decode(errors="replace"))


def tokenizer_of(target: str, vocab_size: int) -> LLTokenizer:
    """Return a target's tokenizer as llguidance wants it, with ids up to `vocab_size`."""
    tokenizer = load_tokenizer(resolve_target(target))
    if not tokenizer.eos_token_ids:
        raise TokenizerError("it has no end-of-text token")
    try:
        vocabulary = TokenizerWrapper(_Vocabulary(tokenizer, vocab_size))
        return LLTokenizer(vocabulary, eos_token=list(tokenizer.eos_token_ids))
    except (ValueError, TypeError) as error:
        raise TokenizerError(str(error)) from error


def invalid(message: str) -> ServiceError:
    """Return the error for a grammar that cannot be used."""
    return invalid_argument(FIELD, f"the constraint cannot be used: {message}")


def overloaded(message: str) -> ServiceError:
    """Return the error for an overload of the verifier, for which no grammar is to blame."""
    return ServiceError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "QUEUE_FULL",
        f"too many constraints are asked for: {message}",
        retry_after_seconds=RETRY_SECONDS,
    )


def _parts(grammar: str) -> list[dict[str, Any]]:
    """Return the grammars of a text, unless they ask for what llguidance cannot roll back."""
    try:
        document = json.loads(grammar)
        parts = document["grammars"]
        only_grammars = list(document) == ["grammars"] and bool(parts)
        readable = only_grammars and all(map(_PART.issuperset, parts))
    except (ValueError, TypeError, KeyError, RecursionError):
        readable = False
    if not readable:
        raise invalid("it has no list of grammars")
    if any(_NO_ROLLBACK.search(str(part.get("lark_grammar", ""))) for part in parts):
        raise invalid("rules with the attributes stop, suffix or max_tokens are not supported")
    return list(parts)


def _refuse_ends(parts: list[dict[str, Any]], tokenizer: LLTokenizer) -> None:
    """Refuse grammars that name an end token: what follows one cannot be rolled back."""
    texts = "\n".join(str(part.get("lark_grammar", "")) for part in parts)
    names = [tokenizer.decode_str([end]) for end in tokenizer.eos_tokens]
    # Only lists of numbers are read; a list with a range is refused.
    number_lists = [numbers.split(",") for numbers in re.findall(r"<\[([^\]]*)\]>", texts)]
    ends = [*map(str, tokenizer.eos_tokens)]
    named = any(
        not number.strip().isdigit() or number.strip() in ends
        for numbers in number_lists
        for number in numbers
    )
    if named or any(name in texts for name in names if name):
        raise invalid("a grammar ends where it ends, and must not name tokens that end a text")


def _explained(error: str, parts: list[dict[str, Any]], tokenizer: LLTokenizer) -> str:
    """Return the error, with the failing part of a JSON Schema if it is in one."""

    def failure(schema: Any) -> str:
        alone = json.dumps({"grammars": [{"json_schema": schema}]})
        return _first_error(LLMatcher(tokenizer, alone, log_level=0, limits=_LIMITS))

    for schema in [part["json_schema"] for part in parts if "json_schema" in part]:
        if reason := failure(schema):
            return f"{reason} at {failing_place(schema, failure)}"
    return error


def _first_error(matcher: LLMatcher) -> str:
    """Return the error of a compiled grammar in one line, "" if there is none."""
    # Some errors show only now, and so does that no output is possible.
    matcher.compute_bitmask()
    if not matcher.is_error():
        return ""
    error = " ".join(matcher.get_error().split())
    return "no output is possible" if error.startswith("NoExtensionBias") else error
