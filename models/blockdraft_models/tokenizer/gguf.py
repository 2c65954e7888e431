"""Byte-level BPE tokenizers built from GGUF metadata."""

from collections.abc import Mapping
from typing import Any, TypeVar

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from blockdraft_models.errors import TokenizerError

Value = TypeVar("Value")

# Token types of the GGUF specification.
_CONTROL, _USER_DEFINED = 3, 4

# Both published with the models: contractions, words, digit groups, punctuation, whitespace.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3, _QWEN2 = _WORDS % r"\p{N}{1,3}", _WORDS % r"\p{N}"


def typed(metadata: Mapping[str, Any], name: str, kind: type[Value]) -> Value | None:
    """Return a value of a file's metadata, or None if it is not there.

    Raises:
        TokenizerError: If it is of another type.
    """
    value = metadata.get(name)
    # Of Python's types, a truth value is a number too.
    if value is not None and type(value) is not kind:
        raise TokenizerError(f"{name} of the GGUF file is no {kind.__name__}")
    if isinstance(value, str):
        _check_unicode(name, value)
    return value


def one_line(error: BaseException) -> str:
    """Return what an error says on a line of its own; those of the binding may take several."""
    return " ".join(str(error).split())


def _texts(metadata: Mapping[str, Any], name: str) -> list[str] | None:
    values = typed(metadata, name, list)
    if values is not None and not all(type(value) is str for value in values):
        raise TokenizerError(f"{name} of the GGUF file holds what is no text")
    _check_unicode(name, "".join(values or ()))
    return values


def _check_unicode(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TokenizerError(f"{name} of the GGUF file is not UTF-8") from error


def backend_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer a GGUF file describes.

    Args:
        metadata: The file's key-value section.

    Returns:
        A BPE tokenizer whose control tokens are special added tokens.

    Raises:
        TokenizerError: If the vocabulary is missing, inconsistent or not byte-level BPE, or the
            pre-tokenizer is unknown (a wrong one would silently change token ids).
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise TokenizerError(f"GGUF tokenizer {kind!r} is not supported (supported: gpt2)")
    tokens = _texts(metadata, "tokenizer.ggml.tokens")
    merges = _texts(metadata, "tokenizer.ggml.merges")
    if not tokens or merges is None:
        raise TokenizerError("the GGUF file has no vocabulary or no merges")
    types = typed(metadata, "tokenizer.ggml.token_type", list) or [1] * len(tokens)
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(types) != len(tokens) or len(vocab) != len(tokens):
        raise TokenizerError("the GGUF vocabulary is inconsistent: lengths differ or tokens repeat")
    pre = typed(metadata, "tokenizer.ggml.pre", str) or "default"
    splitter = _splitter(pre)
    pairs: Any = [tuple(merge.split(" ", 1)) for merge in merges]
    try:
        # Llama 3 takes a word that is a token as it is, even where no merges lead to it.
        model = models.BPE(vocab=vocab, merges=pairs, ignore_merges=pre in ("llama-bpe", "llama3"))
    except Exception as error:  # the binding raises bare Exception
        said = one_line(error)
        raise TokenizerError(f"the GGUF merges do not fit the vocabulary: {said}") from error
    backend = Tokenizer(model)
    backend.pre_tokenizer = splitter
    backend.decoder = decoders.ByteLevel()
    if pre in ("qwen2", "qwen3"):
        backend.normalizer = normalizers.NFC()
    backend.add_special_tokens(_added(tokens, types, _CONTROL, special=True))
    backend.add_tokens(_added(tokens, types, _USER_DEFINED, special=False))
    return backend


def _added(
    tokens: list[str], types: list[int], wanted: int, *, special: bool
) -> list[str | AddedToken]:
    return [
        AddedToken(token, special=special, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind == wanted
    ]


def _splitter(pre: str) -> pre_tokenizers.PreTokenizer:
    if pre in ("default", "gpt-2"):
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre == "smollm":
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
    patterns = {"llama-bpe": _LLAMA3, "llama3": _LLAMA3, "qwen2": _QWEN2, "qwen3": _QWEN2}
    if pre not in patterns:
        known = ", ".join(["default", "gpt-2", "smollm", *patterns])
        raise TokenizerError(f"pre-tokenizer {pre!r} is not supported (supported: {known})")
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(patterns[pre]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
