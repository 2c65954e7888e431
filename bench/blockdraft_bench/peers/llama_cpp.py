"""llama.cpp among the peers: the GGUF file itself, computed in its own quantization."""

import time
from pathlib import Path
from typing import Any

import jax
from gguf import LlamaFileType
from llama_cpp import Llama

from blockdraft_bench.common.answers import PLAIN, Answer
from blockdraft_bench.peers.answers import Stopwatch, Variant
from blockdraft_bench.peers.available import LLAMA_CPP
from blockdraft_models.weights.gguf_header import read_header
from blockdraft_verifier.scheduling.sequence import GenerationRequest


class LlamaCppPeer:
    """A GGUF file in llama.cpp, through llama-cpp-python."""

    def __init__(self, target: Path, context_tokens: int, threads: int) -> None:
        """Load `target`.

        Args:
            target: A `.gguf` file.
            context_tokens: Most tokens of prompt and answer together.
            threads: Of its computations on a CPU.
        """
        self.variant = Variant(LLAMA_CPP, PLAIN, quantization(target))
        self._llama: Any = Llama(
            str(target),
            n_ctx=context_tokens,
            n_threads=threads,
            n_threads_batch=threads,
            n_gpu_layers=-1 if jax.default_backend() == "gpu" else 0,
            verbose=False,
        )

    def decode(self, request: GenerationRequest) -> Answer:
        """Answer a prompt, all of it computed."""
        tokens: list[int] = []
        start = time.perf_counter()
        stopwatch = Stopwatch(start)
        self._llama.reset()  # or it would reuse what it computed for the same prompt before
        for token in self._llama.generate(list(request.prompt), temp=0.0, repeat_penalty=1.0):
            stopwatch.came(1, time.perf_counter())
            tokens.append(token)
            if token in request.stop_token_ids or len(tokens) == request.max_output_tokens:
                break
        return stopwatch.answer(tokens, request.stop_token_ids)


def quantization(path: Path) -> str:
    """Return how a GGUF file says its weights are stored, such as "Q4_1"."""
    kind = read_header(path).metadata.get("general.file_type", -1)
    try:
        return LlamaFileType(kind).name.removeprefix("MOSTLY_").removeprefix("ALL_")
    except ValueError:
        return "GGUF"
