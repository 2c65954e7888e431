"""Grammars over the tiny target's tokens, which are bytes, and requests that have them."""

import functools
import json
import random
from collections.abc import Sequence

from llguidance import LLMatcher, LLTokenizer
from tests.models.tiny import byte_tokenizer
from tests.verifier.support import CONFIG
from tests.verifier.tokens import tokenizer

from blockdraft_models.sampling_options import Sampling
from blockdraft_verifier.grammars.compiler import GrammarCompiler
from blockdraft_verifier.scheduling.sequence import GenerationRequest

END = CONFIG.eos_token_ids[0]
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "colour": {"enum": ["red", "green"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "colour", "age"],
    "additionalProperties": False,
    "x-guidance": _SPACING,
}
_POINTS = {
    "type": "array",
    "items": {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]},
    "minItems": 1,
    "maxItems": 3,
    "x-guidance": _SPACING,
}
# Free text in which a call is restricted.
_CALLS = r"""
start: (call)* TEXT
call: opening "{\"n\": " /[0-9]{1,3}/ "}</c>"
opening[lazy]: TEXT "<c>"
TEXT: /[a-z<>]*/
"""
_THOUGHTS = r"""
start: thought ("yes" | "no")
thought[lazy]: /(.|\n)*/ "!"
"""


tiny_tokenizer = functools.partial(
    tokenizer, json.dumps(byte_tokenizer(CONFIG.vocab_size)), CONFIG.vocab_size, END
)


def tiny_grammars() -> GrammarCompiler:
    return GrammarCompiler(tiny_tokenizer)


def text_grammar(schema: object = None, lark: str = "") -> str:
    one = {"lark_grammar": lark} if lark else {"json_schema": schema}
    return json.dumps({"grammars": [one]})


def choice_of(texts: Sequence[str]) -> str:
    return text_grammar(lark="start: " + " | ".join(map(json.dumps, texts)))


GRAMMARS = (
    text_grammar(_PERSON),
    text_grammar(_POINTS),
    text_grammar({"type": "object", "x-guidance": _SPACING}),
    text_grammar(lark="start: /[0-9]{3}-[a-f]+/"),
    text_grammar(lark="start: /(ab|cd)*é?/"),
    choice_of(["alpha", "alphabet", "beta", "", "été"]),
    text_grammar(lark=_CALLS),
    text_grammar(lark=_THOUGHTS),
)


def matcher(tokens: LLTokenizer, grammar: str) -> LLMatcher:
    found = LLMatcher(tokens, grammar, log_level=0)
    assert not found.is_error(), found.get_error()
    return found


def constrained_requests(seed: int, count: int) -> list[GenerationRequest]:
    """Return requests over all grammars and temperatures, some of which end by their length."""
    rng, tokens = random.Random(seed), tiny_tokenizer()
    compiled = [matcher(tokens, grammar) for grammar in GRAMMARS]
    return [
        GenerationRequest(
            f"r{index}",
            tuple(rng.choices(range(256), k=rng.randint(1, 30))),
            sampling=Sampling(temperature=rng.choice((0.0, 0.7, 1.0)), seed=rng.getrandbits(62)),
            grammar=compiled[index % len(compiled)],
            max_output_tokens=rng.choice((5, 40, 60)),
            stop_token_ids=frozenset((END,)),
        )
        for index in range(count)
    ]
