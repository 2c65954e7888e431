"""Hugging Face transformers among the peers: the same weights, decoded by its own `generate`."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.utils import logging

from blockdraft_bench.common.answers import Answer
from blockdraft_bench.common.errors import BenchError
from blockdraft_bench.peers.answers import Stopwatch, Variant
from blockdraft_bench.peers.available import TRANSFORMERS
from blockdraft_models.weights.huggingface_export import export_huggingface
from blockdraft_verifier.scheduling.sequence import GenerationRequest

GENERATE, PROMPT_LOOKUP, ASSISTED = "generate", "prompt_lookup", "assisted"
# Tokens that prompt lookup copies at most; what the library's documentation shows.
PROMPT_LOOKUP_TOKENS = 10


class _Listener:
    """Takes what `generate` streams: first the prompt, then tokens as they come."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        self._stopwatch = stopwatch
        self._prompt_came = False

    def put(self, token_ids: Any) -> None:
        if self._prompt_came:
            self._stopwatch.came(token_ids.numel(), time.perf_counter())
        self._prompt_came = True

    def end(self) -> None:
        pass


class TransformersPeer:
    """A loaded model and one way to generate with it."""

    def __init__(self, model: Any, name: str, dtype: str, assistant: Any = None) -> None:
        """Decode with a model.

        Args:
            model: As `load_model` returns it.
            name: "generate", "prompt_lookup" or "assisted".
            dtype: Of its weights.
            assistant: The smaller model that drafts for "assisted".
        """
        self.variant = Variant(TRANSFORMERS, name, dtype)
        self._model = model
        self._assistant = assistant
        self._lookup = PROMPT_LOOKUP_TOKENS if name == PROMPT_LOOKUP else None

    def decode(self, request: GenerationRequest) -> Answer:
        """Answer a prompt, all of it computed."""
        config = GenerationConfig(
            do_sample=False,
            max_new_tokens=request.max_output_tokens,
            # An empty list is no stop token to some versions and an error to others.
            eos_token_id=sorted(request.stop_token_ids) or None,
            pad_token_id=min(request.stop_token_ids, default=0),
            prompt_lookup_num_tokens=self._lookup,
        )
        assistant = {} if self._assistant is None else {"assistant_model": self._assistant}
        start = time.perf_counter()
        stopwatch = Stopwatch(start)
        prompt_ids = torch.tensor([list(request.prompt)], device=self._model.device)
        output = self._model.generate(
            prompt_ids,
            attention_mask=torch.ones_like(prompt_ids),
            generation_config=config,
            streamer=_Listener(stopwatch),
            **assistant,
        )
        return stopwatch.answer(output[0, len(request.prompt) :].tolist(), request.stop_token_ids)


def load_transformers_peers(
    target: Path, assistant: Path | None, dtype: str, threads: int
) -> list[TransformersPeer]:
    """Load the target into transformers, once for all ways to generate.

    Args:
        target: A Hugging Face directory or a `.gguf` file, whose dequantized weights are used.
        assistant: A smaller model with the same tokens, of either format; None for none.
        dtype: "float32" or "bfloat16".
        threads: Of its computations on a CPU.

    Raises:
        BenchError: If the assistant's tokens are not the target's.
        ModelError: If one of them cannot be read.
    """
    torch.set_num_threads(threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = load_model(target, dtype)
    peers = [TransformersPeer(model, name, dtype) for name in (GENERATE, PROMPT_LOOKUP)]
    if assistant is not None:
        helper = load_model(assistant, dtype)
        if helper.config.vocab_size != model.config.vocab_size:
            raise BenchError(
                f"the assistant has {helper.config.vocab_size} tokens,"
                f" the target {model.config.vocab_size}"
            )
        peers.append(TransformersPeer(model, ASSISTED, dtype, helper))
    return peers


def load_model(path: Path, dtype: str) -> Any:
    """Return a checkpoint as a transformers model, where JAX computes if torch can."""
    with _huggingface_directory(path) as directory:
        model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=getattr(torch, dtype), local_files_only=True, use_safetensors=True
        )
    # The directory may ask for sampling or penalties; here all decode greedily.
    model.generation_config = GenerationConfig()
    accelerated = jax.default_backend() == "gpu" and torch.cuda.is_available()
    return model.to("cuda" if accelerated else "cpu").eval()


@contextmanager
def _huggingface_directory(path: Path) -> Iterator[Path]:
    """Yield `path`, or its weights as a directory that is removed again."""
    if path.is_dir():
        yield path
        return
    with tempfile.TemporaryDirectory() as scratch:
        export_huggingface(path, Path(scratch))
        yield Path(scratch)
