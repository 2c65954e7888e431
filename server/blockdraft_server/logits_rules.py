"""What a request changes of the target's logits: penalties, biases, and tokens it forbids."""

import math
from collections.abc import Callable, Iterator

from blockdraft_protos.v1 import inference_pb2, verifier_pb2
from blockdraft_server.field_checks import (
    ModelLimits,
    check,
    check_count,
    check_texts,
    check_token_ids,
    check_within,
)

MAX_LOGIT_BIASES = 1024
MAX_BAD_WORDS = 64
# OpenAI's limits.
MAX_LOGIT_BIAS = 100
MAX_PENALTY = 2


def check_rules(sampling: inference_pb2.SamplingOptions) -> None:
    """Check all that needs no tokenizer."""
    repetition = sampling.repetition_penalty
    usable = not sampling.HasField("repetition_penalty") or 0 < repetition < math.inf
    check(usable, "sampling.repetition_penalty", "finite and > 0", repetition)
    check_within("sampling.frequency_penalty", sampling.frequency_penalty, MAX_PENALTY)
    check_within("sampling.presence_penalty", sampling.presence_penalty, MAX_PENALTY)
    check_count("sampling.logit_bias", len(sampling.logit_bias), MAX_LOGIT_BIASES, "biases")
    for token_id, bias in sampling.logit_bias.items():
        check_within(f"sampling.logit_bias[{token_id}]", bias, MAX_LOGIT_BIAS)
    check_texts("sampling.bad_words", sampling.bad_words, MAX_BAD_WORDS)
    least, most = sampling.min_tokens, sampling.max_output_tokens
    check(least >= 0, "sampling.min_tokens", ">= 0", least)
    if sampling.HasField("max_output_tokens"):
        check(least <= most, "sampling.min_tokens", "<= max_output_tokens", least)


def logits_rules(
    sampling: inference_pb2.SamplingOptions,
    limits: ModelLimits,
    encode: Callable[[str], list[int]],
) -> verifier_pb2.LogitsRules | None:
    """Return the rules of options that passed `check_rules`; None if they change nothing."""
    rules = verifier_pb2.LogitsRules(
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        logit_bias=sampling.logit_bias,
        allowed_token_ids=sampling.allowed_token_ids,
        bad_words=[
            verifier_pb2.TokenSequence(token_ids=ids)
            for word in sampling.bad_words
            for ids in _spellings(word, encode)
        ],
        min_tokens=sampling.min_tokens,
    )
    if sampling.HasField("repetition_penalty") and sampling.repetition_penalty != 1:
        rules.repetition_penalty = sampling.repetition_penalty
    if rules == verifier_pb2.LogitsRules():
        return None
    rules.repetition_penalty = rules.repetition_penalty or 1.0
    for token_id in rules.logit_bias:
        known = 0 <= token_id < limits.vocabulary_size
        expected = f"for ids in [0, {limits.vocabulary_size})"
        check(known, f"sampling.logit_bias[{token_id}]", expected, token_id)
    check_token_ids("sampling.allowed_token_ids", rules.allowed_token_ids, limits)
    return rules


def _spellings(word: str, encode: Callable[[str], list[int]]) -> Iterator[list[int]]:
    """Yield the tokens of a word, and those of the word after a space if they are others."""
    alone, after_space = encode(word), encode(f" {word}")
    yield alone
    if after_space[-len(alone) :] != alone:
        yield after_space
