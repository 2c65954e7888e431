"""The validity of a text under a JSON Schema, and the judgement of a grammar."""

import json
import re
import warnings
from typing import Any, Literal

import jsonschema
from llguidance import LLMatcher, LLTokenizer
from referencing.exceptions import Unresolvable

Validity = Literal["valid", "invalid", "unknown"]


def verdict(schema: Any, text: str) -> Validity:
    """Return the validity of a text by the draft that the schema names, or else by 2020-12.

    Formats are not checked, which is how the standard has it. "unknown" means that the validator
    cannot judge: regular expressions that Python does not have, and references without end.
    """
    draft = jsonschema.Draft202012Validator
    try:
        value = json.loads(text)
    except ValueError:
        return "invalid"
    try:
        with warnings.catch_warnings():
            # Of Python's regular expressions, about some of JavaScript's.
            warnings.simplefilter("ignore", FutureWarning)
            validator = jsonschema.validators.validator_for(schema, default=draft)(schema)
            return "valid" if validator.is_valid(value) else "invalid"
    except (re.error, RecursionError, Unresolvable):
        return "unknown"


def accepts(start: LLMatcher, tokenizer: LLTokenizer, value: Any) -> bool:
    """Return whether a grammar allows a JSON value, written with the keys in its own order."""
    matcher = start.deep_copy()
    tokens = tokenizer.tokenize_str(json.dumps(value, ensure_ascii=False))
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
