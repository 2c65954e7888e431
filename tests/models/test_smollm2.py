"""The real default target: its weights, its tokenizer, its completions."""

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tests.models.shared_data import corpus_rows, gsm8k_questions

from blockdraft_models.decoder.attention import DenseAttend
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.tokenizer.tokenizer import Tokenizer, load_tokenizer
from blockdraft_models.weights.loading import load_decoder
from blockdraft_models.weights.resolve import resolve_target

pytestmark = pytest.mark.smollm2

FINGERPRINT = "7e008cc5f88e6903"
LENGTH = 192


@pytest.fixture(scope="module")
def path() -> Path:
    return resolve_target("smollm2-135m")


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> Tokenizer:
    return load_tokenizer(path)


@pytest.fixture(scope="module")
def decoder(path: Path) -> Decoder:
    decoder, checkpoint = load_decoder(path, dtype=jnp.float32)
    assert checkpoint.fingerprint == FINGERPRINT
    return decoder


@partial(jax.jit, static_argnums=0)
def choices(graph: nnx.GraphDef[Decoder], state: Any, tokens: jax.Array) -> jax.Array:
    """The token after each token, greedily."""
    decoder, length = nnx.merge(graph, state), tokens.shape[0]
    positions = jnp.arange(length, dtype=jnp.int32)
    caches = [None] * decoder.config.num_layers
    output = decoder(tokens, positions, caches, DenseAttend(1, length))
    return jnp.argmax(decoder.logits(output.hidden), axis=-1)


def continued(decoder: Decoder, tokens: list[int]) -> np.ndarray:
    padded = np.zeros(LENGTH, np.int32)
    padded[: len(tokens)] = tokens
    return np.asarray(choices(*nnx.split(decoder), jnp.asarray(padded)))[: len(tokens)]


def test_greedy_completions_equal_the_recorded_ones(decoder: Decoder) -> None:
    short = [row for row in corpus_rows() if len(row["prompt"]) + len(row["response"]) <= LENGTH]
    for row in [row for row in short if row["temperature"] == 0][:3]:
        tokens = [*row["prompt"], *row["response"][:-1]]
        actual = continued(decoder, tokens)[len(row["prompt"]) - 1 :]
        assert actual[:16].tolist() == row["response"][:16]
        # Near-ties may round differently on another machine, but hardly ever.
        assert np.mean(actual == np.array(row["response"])) > 0.98


def test_a_greedy_completion_is_english(decoder: Decoder, tokenizer: Tokenizer) -> None:
    question = {"role": "user", "content": "What is the capital of France?"}
    prompt, completion = tokenizer.encode_chat([question]), "The capital of France is Paris."
    chosen = continued(decoder, [*prompt, *tokenizer.encode(completion)])[len(prompt) - 1 :]
    assert chosen[-1] in tokenizer.eos_token_ids
    assert tokenizer.decode(chosen.tolist()) == completion


def test_chat_prompts_equal_the_recorded_ones(tokenizer: Tokenizer) -> None:
    prompts = [row["prompt"] for row in corpus_rows() if row["source"] == "gsm8k"][::8]
    recorded = {}
    for prompt in prompts:
        text = tokenizer.decode(prompt, skip_special=False)
        recorded[text.split("<|im_start|>user\n")[1].split("<|im_end|>")[0]] = prompt
    questions = recorded.keys() & set(gsm8k_questions())
    assert len(questions) == len(recorded) > 100
    for question in questions:
        assert tokenizer.encode_chat([{"role": "user", "content": question}]) == recorded[question]


def test_what_the_tokenizer_is(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == 49152
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, (2, 0))
    empty = [i for i in range(tokenizer.vocab_size) if not tokenizer.token_bytes(i)]
    assert tokenizer.special_token_ids == set(empty) == set(range(17))
    assert tokenizer.encode("In 2024") == tokenizer.encode("In 20") + tokenizer.encode("24")


def test_a_process_that_only_tokenizes_is_small(path: Path) -> None:
    code = (
        "import pathlib, psutil, sys;"
        "from blockdraft_models.tokenizer.tokenizer import load_tokenizer;"
        "tokenizer = load_tokenizer(pathlib.Path(sys.argv[1]));"
        "tokenizer.encode_chat([{'role': 'user', 'content': 'x'}]);"
        "print(psutil.Process().memory_info().rss >> 20)"
    )
    command = [sys.executable, "-c", code, str(path)]
    megabytes = int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    assert megabytes < 120
