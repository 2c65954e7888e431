"""Text to token ids and back, for BPE of bytes or SentencePiece's; loads neither JAX nor NumPy.

Ordinary text can never become a control token: `encode` and the message contents of
`encode_chat` are encoded with control tokens switched off, and only those written by the chat
template, or in a text that the caller calls rendered, are turned into their ids.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from blockdraft_models.errors import CheckpointError, TokenizerError
from blockdraft_models.tokenizer.chat_template import ChatTemplate, Message
from blockdraft_models.tokenizer.files import CHAR_TO_BYTE, read_directory, read_gguf
from blockdraft_models.tokenizer.sentencepiece import (
    SPACE,
    UNSUPPORTED,
    SentencePiece,
    read_sentencepiece,
)
from blockdraft_models.tokenizer.text_decoder import (
    ByteFallbackDecoder,
    TextDecoder,
    TokenBytes,
    Utf8Decoder,
)

# What control tokens may take from the text beside them: white space as Unicode defines it. Python
# counts four separators too.
_WHITESPACE = "".join(filter(str.isspace, map(chr, (*range(0x1C), *range(0x20, 0x3001)))))


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A model's tokenizer and chat template; stateless, safe to share between threads.

    Special tokens are all control tokens; those of EOS end a generation. `control_tokens` are their
    ids by the spelling in the files.
    """

    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    adds_bos: bool
    special_token_ids: frozenset[int]
    control_tokens: Mapping[str, int]
    template: ChatTemplate | None
    _backend: Backend
    _special_pattern: re.Pattern[str]
    _pieces: SentencePiece | None  # None for byte-level BPE
    # Control tokens, as spelled, that take white space before or after them.
    _taking_before: frozenset[str]
    _taking_after: frozenset[str]

    @property
    def vocab_size(self) -> int:
        """Number of tokens, control tokens included; the model may pad beyond it."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        """Encode text, starting with BOS only if the model's files ask for it."""
        return self._prefix + _encode(self._backend, text)

    def encode_rendered(self, text: str) -> list[int]:
        """Encode text that spells control tokens, such as a rendered chat template.

        BOS is added as by `encode`, unless the text begins with it.
        """
        ids = self._encode_rendered(text, {})
        return ids if ids[:1] == self._prefix else self._prefix + ids

    @property
    def _prefix(self) -> list[int]:
        return [self.bos_token_id] if self.adds_bos and self.bos_token_id is not None else []

    def encode_inner(self, text: str) -> list[int]:
        """Encode a continuation of other text, without BOS and without a space before it.

        The bytes of the tokens are those of the text, unless the model's files normalize it.
        """
        if self._pieces is None:
            return _encode(self._backend, text)
        # As text, the character would be read as a space.
        character = self._pieces.space_character
        first, *parts = (_encode(self._pieces.inner, part) for part in text.split(SPACE))
        return [*first, *(token for ids in parts for token in (*character, *ids))]

    def decode(
        self, ids: Sequence[int], *, skip_special: bool = True, continues: bool = False
    ) -> str:
        """Decode token ids; bytes that are no UTF-8 become U+FFFD.

        `skip_special` leaves out control tokens. For `continues` see `text_decoder`.
        """
        token_bytes = self.token_bytes if skip_special else self._spelled_bytes
        decoder = self._decoder(token_bytes, continues=continues)
        return decoder.push(ids) + decoder.finish()

    def text_decoder(self, *, continues: bool = False) -> TextDecoder:
        """Return a decoder of tokens as they arrive, which leaves control tokens out.

        Some models' texts begin with a space that is no part of them: it is dropped, unless the
        text `continues` another.
        """
        return self._decoder(self.token_bytes, continues=continues)

    def _decoder(self, token_bytes: TokenBytes, *, continues: bool) -> TextDecoder:
        if self._pieces is None:
            return Utf8Decoder(token_bytes)
        drops_space = self._pieces.drops_space and not continues
        return ByteFallbackDecoder(token_bytes, self._pieces.single_bytes, drops_space=drops_space)

    def _spelled_bytes(self, token_id: int) -> bytes:
        if token_id in self.special_token_ids:
            return (self._backend.id_to_token(token_id) or "").encode()
        return self.token_bytes(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes one token stands for.

        A token may end within a UTF-8 character; only the concatenation is text. Control tokens
        and ids in the padding of the vocabulary stand for none. The space that a whole text begins
        with is included; see `text_decoder`.
        """
        if token_id < 0:
            raise TokenizerError(f"token id {token_id} is negative")
        token = self._backend.id_to_token(token_id)
        if token is None or token_id in self.special_token_ids:
            return b""
        if self._pieces is not None:
            single = self._pieces.single_bytes.get(token_id)
            return single or token.replace(SPACE, " ").encode()
        try:
            return bytes(CHAR_TO_BYTE[char] for char in token)
        except KeyError:
            # Added tokens are stored as text, not in the byte alphabet.
            return token.encode()

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Any] = (),
        arguments: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Render and encode a conversation; only the template can write control tokens.

        The generation prompt opens the assistant's turn. Tools and further arguments are for the
        template; see `ChatTemplate.render`.
        """
        if self.template is None:
            raise TokenizerError("the model has no chat template; send plain text instead")
        text, spelling = self.template.render(
            messages,
            self._special_pattern,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            arguments=arguments,
        )
        return self._encode_rendered(text, spelling)

    def _encode_rendered(self, text: str, spelling: Mapping[int, str]) -> list[int]:
        """Encode text with control tokens; `spelling` translates stand-ins to ordinary text."""
        ids: list[int] = []
        # The pattern captures, so that odd pieces are control tokens and even ones text.
        pieces = self._special_pattern.split(text)
        after_control = self._pieces.after_control if self._pieces else self._backend
        for index, piece in enumerate(pieces):
            if index % 2:
                ids.append(self.control_tokens[piece])
                continue
            if index and pieces[index - 1] in self._taking_after:
                piece = piece.lstrip(_WHITESPACE)
            if index + 1 < len(pieces) and pieces[index + 1] in self._taking_before:
                piece = piece.rstrip(_WHITESPACE)
            backend = after_control if index else self._backend
            ids.extend(_encode(backend, piece.translate(spelling)))
        return ids


def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer of a Hugging Face directory with `tokenizer.json`, or a `.gguf` file."""
    try:
        files = read_directory(path) if path.is_dir() else read_gguf(path)
    except CheckpointError as error:
        raise TokenizerError(str(error)) from error
    backend, adds_bos = files.backend, files.adds_bos
    if type(backend.model).__name__ != "BPE":
        raise TokenizerError(UNSUPPORTED)
    byte_level = type(backend.decoder).__name__ == "ByteLevel"
    pieces = None if byte_level else read_sentencepiece(backend)
    bos = files.bos_token_id
    if adds_bos is None:
        # The post-processor decides: transformers ignores `add_bos_token` too.
        plain = backend.encode("a", add_special_tokens=False).ids
        first, *rest = whole = backend.encode("a").ids
        adds_bos = whole != plain
        if adds_bos and rest != plain:
            raise TokenizerError("a post-processor that adds more than BOS is not supported")
        bos = first if adds_bos else bos
    special = {
        index: token for index, token in backend.get_added_tokens_decoder().items() if token.special
    }
    if whole_words := [token.content for token in special.values() if token.single_word]:
        raise TokenizerError(f"control token {whole_words[0]!r} as a whole word is not supported")
    special_ids = {token.content: index for index, token in special.items()}
    # Longest first: a control token may begin another. Without any, match nothing.
    longest_first = sorted(special_ids, key=len, reverse=True)
    pattern = "|".join(map(re.escape, longest_first)) or r"(?!)"
    for encoder in (backend, pieces.inner) if pieces else (backend,):
        encoder.encode_special_tokens = True  # spelled-out control tokens are ordinary text
        for content, index in special_ids.items():
            if index in encoder.encode(content, add_special_tokens=False).ids:
                raise TokenizerError(f"ordinary text can spell the control token {content!r}")
    return Tokenizer(
        bos_token_id=bos,
        eos_token_ids=files.eos_token_ids,
        adds_bos=adds_bos,
        special_token_ids=frozenset(special_ids.values()),
        control_tokens=special_ids,
        _backend=backend,
        _special_pattern=re.compile(f"({pattern})"),
        _pieces=pieces,
        _taking_before=frozenset(token.content for token in special.values() if token.lstrip),
        _taking_after=frozenset(token.content for token in special.values() if token.rstrip),
        template=ChatTemplate(files.template, files.special_tokens) if files.template else None,
    )


def _encode(backend: Backend, text: str) -> list[int]:
    try:
        # Only for batches does the binding give up the interpreter's lock, so that other threads
        # run meanwhile; and this one leaves out offsets, which take half of the time.
        [encoding] = backend.encode_batch_fast([text], add_special_tokens=False)
    except (UnicodeEncodeError, TypeError) as error:
        # The binding calls a string with lone surrogates no string at all.
        raise TokenizerError("the text is not valid Unicode") from error
    return encoding.ids
