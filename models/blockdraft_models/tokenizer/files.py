"""What a checkpoint's files say about its tokenizer: Hugging Face directories and GGUF."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from blockdraft_models.errors import TokenizerError
from blockdraft_models.tokenizer.gguf import backend_from_gguf, one_line, typed
from blockdraft_models.weights.files import read_json
from blockdraft_models.weights.gguf_header import read_header


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The parts a `Tokenizer` is built from.

    Attributes:
        backend: Splits text and merges bytes.
        bos_token_id: Token that starts a text, or None.
        eos_token_ids: Tokens that end a generation.
        adds_bos: Whether encoding adds BOS; None if only the backend's post-processor knows.
        template: Chat template source, or None.
        special_tokens: Template variables such as `bos_token`.
    """

    backend: Backend
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    adds_bos: bool | None
    template: str | None
    special_tokens: Mapping[str, str]


def read_gguf(path: Path) -> TokenizerFiles:
    """Read the tokenizer of a `.gguf` file.

    Raises:
        CheckpointError: If it is not a GGUF file.
        TokenizerError: If its tokenizer is not supported.
    """
    metadata = read_header(path).metadata
    backend = backend_from_gguf(metadata)

    def token(name: str) -> int | None:
        return typed(metadata, f"tokenizer.ggml.{name}_token_id", int)

    tokens = metadata["tokenizer.ggml.tokens"]
    special = {
        f"{name}_token": tokens[index]
        for name in ("bos", "eos")
        if (index := token(name)) is not None and 0 <= index < len(tokens)
    }
    return TokenizerFiles(
        backend,
        bos_token_id=token("bos"),
        eos_token_ids=_distinct(token("eos"), token("eot"), token("eom")),
        adds_bos=typed(metadata, "tokenizer.ggml.add_bos_token", bool),
        template=typed(metadata, "tokenizer.chat_template", str),
        special_tokens=special,
    )


def read_directory(path: Path) -> TokenizerFiles:
    """Read `tokenizer.json` and what surrounds it in a Hugging Face directory.

    Raises:
        CheckpointError: If a JSON file is damaged.
        TokenizerError: If `tokenizer.json` is missing or damaged.
    """
    config = read_json(path / "tokenizer_config.json")
    model = {**read_json(path / "config.json"), **read_json(path / "generation_config.json")}
    file = path / "tokenizer.json"
    if not file.is_file():
        raise TokenizerError(f"{path} has no tokenizer.json")
    try:
        backend = Backend.from_file(str(file))
    except Exception as error:  # the binding raises bare Exception
        raise TokenizerError(f"cannot read {file}: {one_line(error)}") from error
    special = {
        f"{name}_token": content
        for name in ("bos", "eos", "unk", "pad")
        if (content := _content(config.get(f"{name}_token"))) is not None
    }
    eos = model.get("eos_token_id")
    eos_ids = eos if isinstance(eos, list) else [eos]
    ids = {name: backend.token_to_id(content) for name, content in special.items()}
    return TokenizerFiles(
        backend,
        bos_token_id=_token_id(ids.get("bos_token", model.get("bos_token_id"))),
        eos_token_ids=_distinct(*map(_token_id, eos_ids), ids.get("eos_token")),
        adds_bos=_switch(config, "add_bos_token"),
        template=_directory_template(path, config),
        special_tokens=special,
    )


def _directory_template(path: Path, config: Mapping[str, Any]) -> str | None:
    file = path / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise TokenizerError(f"cannot read {file}: {error}") from error
    template = config.get("chat_template")
    if isinstance(template, list):  # several, by name
        entries = [entry for entry in template if isinstance(entry, dict)]
        template = next((e.get("template") for e in entries if e.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def _content(token: Any) -> str | None:
    # A plain string, or an AddedToken written out as an object.
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _switch(config: Mapping[str, Any], name: str) -> bool | None:
    value = config.get(name)
    if value is None or isinstance(value, bool):
        return value
    raise TokenizerError(f"{name} is {str(value)[:50]!r}, neither true nor false")


def _token_id(value: Any) -> int | None:
    """Return an id that a file names, or None.

    Raises:
        TokenizerError: If it is none.
    """
    if value is None or (type(value) is int and value >= 0):
        return value
    raise TokenizerError(f"{str(value)[:50]!r} is no token id")


def _distinct(*ids: int | None) -> tuple[int, ...]:
    return tuple(dict.fromkeys(index for index in ids if index is not None))
