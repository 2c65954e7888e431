"""The parts of a tokenizer in a checkpoint's files: Hugging Face directories and GGUF."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from blockdraft_models.errors import TokenizerError
from blockdraft_models.families.published_config import CONTROL, spelled_ends
from blockdraft_models.weights.files import check_fetched, read_json
from blockdraft_models.weights.gguf_header import read_header

Value = TypeVar("Value")

_USER_DEFINED = 4  # of the token types of the GGUF specification
_NAMES = ("bos", "eos", "unk", "pad", "sep", "cls", "mask")
# Pre-tokenizers of Llama 3, which puts BOS before every text unless the file says otherwise.
_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")

# Both published with the models: contractions, words, digit groups, punctuation, whitespace.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3, _QWEN2 = _WORDS % r"\p{N}{1,3}", _WORDS % r"\p{N}"


def _alphabet() -> dict[int, str]:
    """Return GPT-2's alphabet: every byte written as one printable character."""
    # Printable Latin-1 stands for itself; the others take code points from 256 on, in order
    # (`bytes_to_unicode` of openai/gpt-2 `src/encoder.py`).
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    code_points = itertools.count(256)
    return {byte: chr(byte if byte in printable else next(code_points)) for byte in range(256)}


BYTE_TO_CHAR = _alphabet()
CHAR_TO_BYTE = {char: byte for byte, char in BYTE_TO_CHAR.items()}


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The parts a `Tokenizer` is built from."""

    backend: Backend  # splits text and merges bytes
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    # Whether encoding adds BOS; None if only the backend's post-processor knows.
    adds_bos: bool | None
    template: str | None  # chat template source, or None
    special_tokens: Mapping[str, str]  # template variables such as `bos_token`


def read_gguf(path: Path) -> TokenizerFiles:
    """Read the tokenizer of a `.gguf` file."""
    metadata = read_header(path).metadata
    backend = backend_from_gguf(metadata)
    adds_bos = _typed(metadata, "tokenizer.ggml.add_bos_token", bool)

    def token(name: str) -> int | None:
        return _typed(metadata, f"tokenizer.ggml.{name}_token_id", int)

    tokens = metadata["tokenizer.ggml.tokens"]
    special = {
        f"{name}_token": tokens[index]
        for name in ("bos", "eos")
        if (index := token(name)) is not None and 0 <= index < len(tokens)
    }
    return TokenizerFiles(
        backend,
        bos_token_id=token("bos"),
        eos_token_ids=_distinct(token("eos"), token("eot"), token("eom"), *spelled_ends(metadata)),
        adds_bos=metadata["tokenizer.ggml.pre"] in _LLAMA3_NAMES if adds_bos is None else adds_bos,
        template=_typed(metadata, "tokenizer.chat_template", str),
        special_tokens=special,
    )


def read_directory(path: Path) -> TokenizerFiles:
    """Read `tokenizer.json` and the files beside it in a Hugging Face directory."""
    config = read_json(path / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:  # as older files are
        config = {**config, **read_json(path / "special_tokens_map.json")}
    model = {**read_json(path / "config.json"), **read_json(path / "generation_config.json")}
    file = path / "tokenizer.json"
    if not file.is_file():
        raise TokenizerError(f"{path} has no tokenizer.json")
    check_fetched(file)
    try:
        backend = Backend.from_file(str(file))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the binding raises bare Exception, and panics with less
        raise TokenizerError(f"cannot read {file}: {_one_line(error)}") from error
    # Training may have left settings that would cut or fill every text.
    backend.no_truncation()
    backend.no_padding()
    special = {
        f"{name}_token": content
        for name in ("bos", "eos", "unk", "pad")
        if (content := _content(config.get(f"{name}_token"))) is not None
    }
    _add_tokens(backend, config)
    eos = model.get("eos_token_id")
    eos_ids = eos if isinstance(eos, list) else [eos]
    ids = {name: backend.token_to_id(content) for name, content in special.items()}
    return TokenizerFiles(
        backend,
        bos_token_id=_token_id(ids.get("bos_token", model.get("bos_token_id"))),
        eos_token_ids=_distinct(*map(_token_id, eos_ids), ids.get("eos_token")),
        adds_bos=None,
        template=_directory_template(path, config),
        special_tokens=special,
    )


def _add_tokens(backend: Backend, config: Mapping[str, Any]) -> None:
    """Add the tokens that are only in files beside `tokenizer.json`, as transformers does."""
    tokens = {token.content: token for token in backend.get_added_tokens_decoder().values()}
    entries = config.get("added_tokens_decoder") or {}
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    ids: dict[str, int] = {}
    try:
        for index in sorted(entries, key=int):
            token = AddedToken(**entries[index])
            tokens[token.content], ids[token.content] = token, int(index)
        named = [config.get(f"{name}_token") for name in _NAMES]
        named += extra.values() if isinstance(extra, dict) else extra
        for content in filter(None, map(_content, named)):
            token = tokens.get(content) or AddedToken(content, normalized=False)
            token.special = True
            # A token that the vocabulary lacks means nothing to the model.
            if content in ids or backend.token_to_id(content) is not None:
                tokens[content] = token
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise TokenizerError(f"tokenizer_config.json describes no tokens: {error!r}") from error
    backend.add_tokens(list(tokens.values()))
    for content, index in ids.items():
        if backend.token_to_id(content) != index:
            raise TokenizerError(f"{content!r} has another id in tokenizer.json than {index}")


def _directory_template(path: Path, config: Mapping[str, Any]) -> str | None:
    template = config.get("chat_template")
    by_name = {"default": template}
    if isinstance(template, list):
        by_name = {
            str(entry.get("name")): entry.get("template")
            for entry in template
            if isinstance(entry, dict)
        }
    for name, file in (
        ("default", path / "chat_template.jinja"),
        ("tool_use", path / "additional_chat_templates" / "tool_use.jinja"),
    ):
        if file.is_file():
            try:
                by_name[name] = file.read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                raise TokenizerError(f"cannot read {file}: {error}") from error
    default, of_tools = by_name.get("default"), by_name.get("tool_use")
    if not isinstance(default, str) or not isinstance(of_tools, str):
        return default if isinstance(default, str) else None
    # Expressions keep white space at the ends; the end of a template loses one line break.
    ends = "{{ '' }}"
    parts = [ends + text.removesuffix("\n") + ends for text in (of_tools, default)]
    return "{% if tools %}" + "{% else %}".join(parts) + "{% endif %}"


def _content(token: Any) -> str | None:
    # A plain string, or an AddedToken written out as an object.
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _token_id(value: Any) -> int | None:
    if value is None or (type(value) is int and value >= 0):
        return value
    raise TokenizerError(f"{str(value)[:50]!r} is no token id")


def _distinct(*ids: int | None) -> tuple[int, ...]:
    return tuple(dict.fromkeys(index for index in ids if index is not None))


def _typed(metadata: Mapping[str, Any], name: str, kind: type[Value]) -> Value | None:
    value = metadata.get(name)
    # `isinstance` would take a truth value for a number.
    if value is not None and type(value) is not kind:
        raise TokenizerError(f"{name} of the GGUF file is no {kind.__name__}")
    if isinstance(value, str):
        _check_unicode(name, value)
    return value


def _texts(metadata: Mapping[str, Any], name: str) -> list[str] | None:
    values = _typed(metadata, name, list)
    if values is not None and not all(type(value) is str for value in values):
        raise TokenizerError(f"{name} of the GGUF file holds what is no text")
    _check_unicode(name, "".join(values or ()))
    return values


def _check_unicode(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TokenizerError(f"{name} of the GGUF file is not UTF-8") from error


def backend_from_gguf(metadata: Mapping[str, Any]) -> Backend:
    """Build the BPE tokenizer of a GGUF file; its control tokens are special added tokens.

    An unknown pre-tokenizer is refused: another one would silently change token ids.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise TokenizerError(f"GGUF tokenizer {kind!r} is not supported (supported: gpt2)")
    tokens = _texts(metadata, "tokenizer.ggml.tokens")
    merges = _texts(metadata, "tokenizer.ggml.merges")
    if not tokens or merges is None:
        raise TokenizerError("the GGUF file has no vocabulary or no merges")
    types = _typed(metadata, "tokenizer.ggml.token_type", list) or [1] * len(tokens)
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(types) != len(tokens) or len(vocab) != len(tokens):
        raise TokenizerError("the GGUF vocabulary is inconsistent: lengths differ or tokens repeat")
    pre = _typed(metadata, "tokenizer.ggml.pre", str)
    if pre in (None, "default"):
        # Older converters wrote this for every model, and llama.cpp warns of worse answers.
        raise TokenizerError("the GGUF file names no pre-tokenizer; convert the model anew")
    splitter = _splitter(pre)
    pairs: Any = [tuple(merge.split(" ", 1)) for merge in merges]
    try:
        # Llama 3 takes a word that is a token as it is, even where no merges lead to it.
        model = models.BPE(vocab=vocab, merges=pairs, ignore_merges=pre in _LLAMA3_NAMES)
    except Exception as error:  # the binding raises bare Exception
        reason = _one_line(error)
        raise TokenizerError(f"the GGUF merges do not fit the vocabulary: {reason}") from error
    backend = Backend(model)
    backend.pre_tokenizer = splitter
    backend.decoder = decoders.ByteLevel()
    if pre in ("qwen2", "qwen3"):
        backend.normalizer = normalizers.NFC()
    backend.add_special_tokens(_added(tokens, types, CONTROL, special=True))
    backend.add_tokens(_added(tokens, types, _USER_DEFINED, special=False))
    return backend


def _added(
    tokens: list[str], types: list[int], token_type: int, *, special: bool
) -> list[str | AddedToken]:
    return [
        AddedToken(token, special=special, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind == token_type
    ]


def _splitter(pre: str | None) -> pre_tokenizers.PreTokenizer:
    if pre == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre == "smollm":
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
    patterns = {**dict.fromkeys(_LLAMA3_NAMES, _LLAMA3), "qwen2": _QWEN2, "qwen3": _QWEN2}
    if pre not in patterns:
        names = ", ".join(["gpt-2", "smollm", *patterns])
        raise TokenizerError(f"pre-tokenizer {pre!r} is not supported (supported: {names})")
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(patterns[pre]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _one_line(error: BaseException) -> str:
    # Messages of the binding may have several lines.
    return " ".join(str(error).split())
