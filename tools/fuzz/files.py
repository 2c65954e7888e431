"""Opens mutated files with the loaders that read them, and judges what they raise."""

import json
import random
import resource
import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from flax import nnx
from gguf import GGUFWriter
from tests.models.builders import close_gguf, write_gguf
from tests.models.tiny import tiny_config, write_hf_checkpoint
from tests.models.tokenizer.sentencepiece import described, write_tokenizer
from tools.fuzz.json_mutations import mutated_json
from tools.fuzz.mutations import mutated_bytes

from blockdraft_drafter.checkpoint import load_drafter, save_drafter
from blockdraft_drafter.dflash.config import DFlashConfig
from blockdraft_drafter.dflash.model import DFLASH, DFlash
from blockdraft_models.decoder.model import Decoder
from blockdraft_models.tokenizer.files import BYTE_TO_CHAR
from blockdraft_models.tokenizer.tokenizer import load_tokenizer
from blockdraft_models.weights.loading import load_checkpoint_config, load_decoder
from blockdraft_training.corpus.prompts import read_prompts
from blockdraft_training.corpus.rows import read_corpus
from blockdraft_training.settings import PromptFile

# A tiny file is opened in milliseconds; so much is a defect, however busy the machine is.
SLOW_SECONDS = 10.0
LARGE_MIB = 512
_LONGEST_MESSAGE = 20_000

Change = Callable[[random.Random, bytes], bytes]


@dataclass(frozen=True, slots=True)
class Opened:
    """A file and what opens it."""

    name: str  # for the report
    path: Path  # the file that is mutated
    change: Change  # how
    load: Callable[[], object]  # opens it, or the directory that it is in


@dataclass
class Tally:
    """What came of the files."""

    # How often each loader loaded or refused.
    endings: Counter[str] = field(default_factory=Counter)
    # What must not happen, with the file that made it happen.
    bad: list[tuple[str, str, bytes]] = field(default_factory=list)


def fuzz(opened: Sequence[Opened], files: int, seed: int) -> Tally:
    """Mutate and open `files` files, as many of each kind."""
    draw = random.Random(seed)
    tally = Tally()
    right = {one.name: one.path.read_bytes() for one in opened}
    for number in range(files):
        one = opened[number % len(opened)]
        data = one.change(draw, right[one.name])
        one.path.write_bytes(data)
        try:
            ending = _open(one)
        finally:
            one.path.write_bytes(right[one.name])
        tally.endings[f"{one.name}: {ending.split(' ')[0]}"] += 1
        if ending.startswith("BAD"):
            tally.bad.append((one.name, ending, data))
    for one in opened:
        one.load()
    return tally


def _open(one: Opened) -> str:
    """Return how the opening of a file ended."""
    began, before = time.monotonic(), _most_mib()
    ending = "loaded"
    try:
        one.load()
    except (KeyboardInterrupt, SystemExit):
        raise
    except (ValueError, OSError) as error:
        ending = "refused"
        if "\n" in str(error).strip() or not 0 < len(str(error)) < _LONGEST_MESSAGE:
            ending = f"BAD message of {type(error).__name__}: {str(error)[:300]!r}"
    # The tokenizer's binding panics with what is no Exception.
    except BaseException as error:
        ending = f"BAD {type(error).__name__}: {str(error)[:300]}"
    took, grown = time.monotonic() - began, _most_mib() - before
    if took > SLOW_SECONDS or grown > LARGE_MIB:
        return f"BAD took {took:.1f} s and {grown:.0f} MiB ({ending})"
    return ending


def _most_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def tiny_files(folder: Path) -> list[Opened]:
    """Write one small file of every kind that is read, and return what opens each."""
    config = tiny_config(num_layers=4)
    decoder = Decoder(config, rngs=nnx.Rngs(0))
    target = folder / "target"
    write_hf_checkpoint(decoder, target)
    pieces = write_tokenizer(folder / "pieces", described("mistral"))
    gguf, words = folder / "tiny.gguf", folder / "words.gguf"
    write_gguf(decoder, gguf)
    _write_words(words)
    drafter, held = folder / "drafter", load_checkpoint_config(target)
    save_drafter(DFlash(DFlashConfig.default_for(config), rngs=nnx.Rngs(1)), drafter)
    prompts, corpus = folder / "prompts.jsonl", folder / "corpus.jsonl.gz"
    prompts.write_text(
        "".join(json.dumps({"id": str(i), "turns": ["why?", "so"]}) + "\n" for i in range(5))
    )
    rows = folder / "rows.jsonl"
    row = {"source": "s", "temperature": 0.5, "prompt": [1, 2], "response": [3, 4], "seed": 1}
    text = "".join(
        json.dumps({**row, "id": str(i), "response": [3, i + 1]}) + "\n" for i in range(5)
    )
    rows.write_text(text)
    corpus.write_bytes(_gzipped(text))

    def decoded(path: Path) -> Callable[[], object]:
        return lambda: load_decoder(path, dtype=jnp.float32)

    def drafts() -> object:
        return load_drafter(DFLASH, drafter, held, dtype=jnp.float32)

    def reads(path: Path) -> Callable[[], object]:
        return lambda: read_corpus(
            [path], vocab_size=config.vocab_size, fingerprint=held.fingerprint
        )

    def words_of(path: Path) -> Callable[[], object]:
        def load() -> object:
            tokenizer = load_tokenizer(path)
            return tokenizer.decode(tokenizer.encode("a duck <|im_end|>"))

        return load

    return [
        Opened("weights", target / "model.safetensors", _changed_header, decoded(target)),
        Opened("config.json", target / "config.json", _changed_json, decoded(target)),
        Opened("gguf", gguf, _changed_head, decoded(gguf)),
        Opened("gguf tokenizer", words, mutated_bytes, words_of(words)),
        Opened("tokenizer.json", target / "tokenizer.json", _changed_json, words_of(target)),
        Opened("pieces", pieces / "tokenizer.json", _changed_json, words_of(pieces)),
        Opened(
            "tokenizer_config.json",
            target / "tokenizer_config.json",
            _changed_json,
            words_of(target),
        ),
        Opened("drafter weights", drafter / "model.safetensors", _changed_header, drafts),
        Opened("drafter config", drafter / "config.json", _changed_json, drafts),
        Opened(
            "prompts", prompts, _changed_lines, lambda: list(read_prompts(PromptFile("p", prompts)))
        ),
        Opened("corpus", rows, _changed_lines, reads(rows)),
        Opened("corpus.gz", corpus, mutated_bytes, reads(corpus)),
    ]


def _changed_json(draw: random.Random, data: bytes) -> bytes:
    if draw.random() < 0.2:
        return mutated_bytes(draw, data)
    return mutated_json(draw, data.decode())


def _changed_lines(draw: random.Random, data: bytes) -> bytes:
    if draw.random() < 0.3:
        return mutated_bytes(draw, data)
    lines = data.splitlines()
    at = draw.randrange(len(lines))
    lines[at] = mutated_json(draw, lines[at].decode())
    return b"\n".join(lines) + b"\n"


def _changed_header(draw: random.Random, data: bytes) -> bytes:
    """Change a safetensors file, mostly its header."""
    [size] = struct.unpack_from("<Q", data)
    header, tensors = data[8 : 8 + size], data[8 + size :]
    chance = draw.random()
    if chance < 0.2:
        return mutated_bytes(draw, data)
    header = mutated_json(draw, header.decode()) if chance < 0.8 else mutated_bytes(draw, header)
    length = len(header) if draw.random() < 0.9 else draw.choice((0, 1, 2**31, 2**63, 2**64 - 1))
    return struct.pack("<Q", length) + header + tensors


def _changed_head(draw: random.Random, data: bytes) -> bytes:
    """Change a GGUF file, mostly where metadata and directory are."""
    head = 4096 if draw.random() < 0.8 else len(data)
    return mutated_bytes(draw, data[:head]) + data[head:]


def _gzipped(text: str) -> bytes:
    import gzip

    return gzip.compress(text.encode(), mtime=0)


def _write_words(path: Path) -> None:
    tokens = [*(BYTE_TO_CHAR[byte] for byte in range(256)), "ll", "<|im_end|>"]
    writer: Any = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_merges(["l l"])
    writer.add_token_types([1] * 257 + [3])
    writer.add_eos_token_id(257)
    writer.add_bos_token_id(257)
    writer.add_chat_template("{{ messages[0].content }}{{ eos_token }}")
    close_gguf(writer)
