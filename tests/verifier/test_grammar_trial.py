"""Grammars that take too long or too much are refused by a process that dies of them."""

import json
import signal
import threading
import time
from collections.abc import Sequence

import grpc
import pytest
from tests.verifier.grammars import GRAMMARS, text_grammar, tiny_tokenizer

from blockdraft_runtime.status import ServiceError
from blockdraft_verifier.grammars.trial import GrammarTrial


def all_of(patterns: Sequence[str]) -> str:
    return text_grammar({"type": "string", "allOf": [{"pattern": each} for each in patterns]})


def test_grammars_that_compile() -> None:
    trial = GrammarTrial(tiny_tokenizer)
    for grammar in GRAMMARS:
        trial(grammar)


def test_a_grammar_that_takes_too_long() -> None:
    trial = GrammarTrial(tiny_tokenizer, seconds=0.3)
    # Twice as long with each pattern.
    began = time.monotonic()
    with pytest.raises(ServiceError, match=r"did not compile within 0\.3 s"):
        trial(all_of([f"x{number}" for number in range(100)]))
    assert time.monotonic() - began < 30
    trial(GRAMMARS[0])


def test_a_grammar_that_takes_too_much_memory() -> None:
    trial = GrammarTrial(tiny_tokenizer, seconds=60.0, mib=64)
    parts = " & ".join(f"~/.*{number}.*/" for number in range(3000))
    with pytest.raises(ServiceError, match="did not compile in the memory that it may take"):
        trial(text_grammar(lark=f"start: T\nT: {parts}"))
    trial(GRAMMARS[0])


def test_a_trial_that_the_system_ends_is_no_fault_of_the_grammar() -> None:
    trial = GrammarTrial(tiny_tokenizer)
    trial(GRAMMARS[0])
    assert trial._process is not None
    trial._process.kill()
    trial._process.wait()
    trial(GRAMMARS[0])
    process = trial._process
    process.send_signal(signal.SIGSTOP)
    threading.Timer(0.2, process.kill).start()
    with pytest.raises(ServiceError, match="too many constraints") as caught:
        trial(GRAMMARS[0])
    assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    trial(GRAMMARS[0])


def test_a_tokenizer_that_cannot_be_made() -> None:
    with pytest.raises(RuntimeError, match="did not start: status 1"):
        GrammarTrial(json.loads)("")  # type: ignore[arg-type]
