"""Text to token ids and back, for byte-level BPE models; loads neither JAX nor NumPy.

Ordinary text can never become a control token: `encode` and the message contents of
`encode_chat` are encoded with control tokens switched off, and only those written by the chat
template are turned into their ids.
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


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A model's tokenizer and chat template; stateless, safe to share between threads.

    Special tokens are all control tokens, of which those of EOS end a generation;
    `control_tokens` are their ids by how the files spell them.
    """

    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    adds_bos: bool
    special_token_ids: frozenset[int]
    control_tokens: Mapping[str, int]
    template: ChatTemplate | None
    _backend: Backend
    _special_pattern: re.Pattern[str]

    @property
    def vocab_size(self) -> int:
        """Number of tokens, control tokens included; the model may pad beyond it."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        """Encode text, starting with BOS only if the model's files ask for it."""
        prefix = [self.bos_token_id] if self.adds_bos and self.bos_token_id is not None else []
        return prefix + self._encode_plain(text)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Decode token ids; bytes that are no UTF-8 become U+FFFD.

        Control tokens are left out, or spelled.
        """
        parts = []
        for token in ids:
            if token in self.special_token_ids and not skip_special:
                parts.append((self._backend.id_to_token(token) or "").encode())
            else:
                parts.append(self.token_bytes(token))
        return b"".join(parts).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes one token stands for.

        A token may end within a UTF-8 character; only the concatenation is text. Control tokens
        and ids in the padding of the vocabulary stand for none.
        """
        if token_id < 0:
            raise TokenizerError(f"token id {token_id} is negative")
        token = self._backend.id_to_token(token_id)
        if token is None or token_id in self.special_token_ids:
            return b""
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
        ids: list[int] = []
        # The pattern captures, so that odd pieces are control tokens and even ones text.
        for index, piece in enumerate(self._special_pattern.split(text)):
            if index % 2:
                ids.append(self.control_tokens[piece])
            elif piece:
                ids.extend(self._encode_plain(piece.translate(spelling)))
        return ids

    def _encode_plain(self, text: str) -> list[int]:
        try:
            # Only for batches does the binding give up the interpreter's lock, so that other
            # threads run meanwhile; and this one leaves out offsets, which take half of the time.
            [encoding] = self._backend.encode_batch_fast([text], add_special_tokens=False)
        except (UnicodeEncodeError, TypeError) as error:
            # The binding calls a string with lone surrogates no string at all.
            raise TokenizerError("the text is not valid Unicode") from error
        return encoding.ids


def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer of a Hugging Face directory with `tokenizer.json`, or a `.gguf` file."""
    try:
        files = read_directory(path) if path.is_dir() else read_gguf(path)
    except CheckpointError as error:
        raise TokenizerError(str(error)) from error
    backend, adds_bos = files.backend, files.adds_bos
    if type(backend.model).__name__ != "BPE" or type(backend.decoder).__name__ != "ByteLevel":
        raise TokenizerError("only byte-level BPE tokenizers are supported")
    if adds_bos is None:
        # Llama 3 says it only through its post-processor.
        bos = files.bos_token_id
        adds_bos = bos is not None and backend.encode("").ids[:1] == [bos]
    special_ids = {
        token.content: index
        for index, token in backend.get_added_tokens_decoder().items()
        if token.special
    }
    # Longest first: a control token may begin another. Without any, match nothing.
    longest_first = sorted(special_ids, key=len, reverse=True)
    pattern = "|".join(map(re.escape, longest_first)) or r"(?!)"
    backend.encode_special_tokens = True  # spelled-out control tokens are ordinary text
    for content, index in special_ids.items():
        if index in backend.encode(content, add_special_tokens=False).ids:
            raise TokenizerError(f"ordinary text can spell the control token {content!r}")
    return Tokenizer(
        bos_token_id=files.bos_token_id,
        eos_token_ids=files.eos_token_ids,
        adds_bos=adds_bos,
        special_token_ids=frozenset(special_ids.values()),
        control_tokens=special_ids,
        _backend=backend,
        _special_pattern=re.compile(f"({pattern})"),
        template=ChatTemplate(files.template, files.special_tokens) if files.template else None,
    )
