"""Conversations of user and target, and the requests for their next messages.

Sampling is a function of the corpus' seed and the row's id alone: a row can be made again by
itself, and neither order nor interruptions change it.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from blockdraft_models.errors import TokenizerError
from blockdraft_models.tokenizer.tokenizer import Tokenizer
from blockdraft_training.corpus.generator import FinishedCompletion, Request
from blockdraft_training.corpus.lines import LineFile
from blockdraft_training.corpus.prompts import CorpusPrompt, read_prompts
from blockdraft_training.corpus.rows import CorpusRow
from blockdraft_training.settings import CorpusSettings, PromptFile

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
SELF_CHAT = "self-chat"
_SELF_CHAT_TEMPERATURE = 1.0
# Two messages that share no token: the tokens that both chats share are the template's.
_PROBES = ("a", "0")
_HASH_BYTES = 8
# Whole numbers of 53 bits survive every JSON reader.
_DROPPED_BITS = 8 * _HASH_BYTES - 53


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages so far, of user and target in turn.

    The target makes up the user's messages that the prompt lacks.
    """

    prompt: CorpusPrompt
    texts: tuple[str, ...]

    @property
    def turn(self) -> int:
        """Number of the user's last message, counted from 1."""
        return (len(self.texts) + 1) // 2

    @property
    def row_id(self) -> str:
        """Id of the row with the completion to the user's last message."""
        return _turn_id(self.prompt.id, self.turn)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The messages for the chat template."""
        roles = ("user", "assistant")
        return [
            {"role": roles[index % 2], "content": text} for index, text in enumerate(self.texts)
        ]

    def then(self, text: str) -> "Conversation":
        """Return the conversation after one more message."""
        return replace(self, texts=(*self.texts, text))


def answered(
    conversations: Iterable[Conversation], rows: dict[str, CorpusRow], tokenizer: Tokenizer
) -> list[Conversation]:
    """Return the conversations with their completions, where those ended and are readable."""
    heard = []
    for conversation in conversations:
        row = rows.get(conversation.row_id)
        if row is None or row.response[-1] not in tokenizer.eos_token_ids:
            continue
        text = tokenizer.decode(row.response[:-1])
        if REPLACEMENT not in text:
            heard.append(conversation.then(text))
    return heard


def completion_requests(
    settings: CorpusSettings, tokenizer: Tokenizer, conversations: Sequence[Conversation]
) -> tuple[list[Request], int]:
    """Return the requests, up to the limit, and the number of prompts that were too long."""
    requests, too_long = list[Request](), 0
    for conversation in conversations:
        if len(requests) == settings.limit:
            break
        ids = tokenizer.encode_chat(conversation.messages)
        if len(ids) > settings.max_prompt_tokens:
            too_long += 1
            continue
        name = conversation.row_id
        greedy = _hash(settings.seed, "kind", name) < settings.greedy_share * (1 << 8 * _HASH_BYTES)
        temperature = 0.0 if greedy else settings.temperature
        requests.append(Request(name, tuple(ids), temperature, _noise_seed(settings.seed, name)))
    return requests, too_long


def self_chat_path(corpus: Path) -> Path:
    """Return the path of a corpus' made-up prompts."""
    return corpus.with_name(f"{corpus.stem}.{SELF_CHAT}.jsonl")


class SelfChat:
    """The user's messages, made up by the target: the user's turn, sampled after its opening.

    They need no data set, and resemble what the target was tuned on (Xu et al. 2024, "Magpie"). A
    prompt file beside the corpus keeps them, so that an interrupted run does not make them again. A
    message that is empty, does not end within the longest prompt or breaks off within a character
    is kept as an empty text: it is not tried again.
    """

    def __init__(
        self,
        settings: CorpusSettings,
        tokenizer: Tokenizer,
        generate: Callable[[Sequence[Request]], Iterator[FinishedCompletion]],
    ) -> None:
        """Make up nothing yet; `generate` lets the target answer requests."""
        self._settings, self._tokenizer, self._generate = settings, tokenizer, generate

    def prompts(self) -> list[CorpusPrompt]:
        """Return as many prompts as the settings ask for, in order; unusable ones are empty."""
        settings = self._settings
        if not settings.self_chat:
            return []
        encoded = [(text, opening_ids(self._tokenizer, text)) for text in settings.openings]
        for text, ids in encoded:
            if len(ids) >= settings.max_prompt_tokens:
                raise ValueError(f"the opening {text!r} takes {len(ids)} tokens: no space for more")
        openings = {
            f"{SELF_CHAT}/{index}": encoded[index % len(encoded)]
            for index in range(settings.self_chat)
        }
        messages = self._made_up(openings)
        return [CorpusPrompt(name, SELF_CHAT, (messages[name],)) for name in openings]

    def messages(self, conversations: Sequence[Conversation]) -> list[str]:
        """Return the user's next message of each; empty if it is unusable or does not fit."""
        names = [
            _turn_id(conversation.prompt.id, conversation.turn + 1)
            for conversation in conversations
        ]
        openings = {}
        for name, conversation in zip(names, conversations, strict=True):
            ids = opening_ids(self._tokenizer, before=conversation.messages)
            if len(ids) < self._settings.max_prompt_tokens:
                openings[name] = ("", ids)
        messages = self._made_up(openings)
        return [messages.get(name, "") for name in names]

    def _made_up(self, openings: dict[str, tuple[str, tuple[int, ...]]]) -> dict[str, str]:
        """Return the messages by name; those that the file lacks go on from their openings."""
        if not openings:
            return {}
        file = PromptFile(SELF_CHAT, self_chat_path(self._settings.output))
        with LineFile(file.path) as lines:
            messages = {prompt.id: prompt.text for prompt in read_prompts(file)}
            requests = [
                self._request(name, ids)
                for name, (_, ids) in openings.items()
                if name not in messages
            ]
            for completion in self._generate(requests):
                name = completion.request.id
                begin, _ = openings[name]
                continuation = self._tokenizer.decode(completion.token_ids, continues=bool(begin))
                text = (begin + continuation).strip()
                messages[name] = "" if completion.cut or REPLACEMENT in text else text
                fields = {"id": name, "turns": [messages[name]]}
                lines.append(json.dumps(fields, ensure_ascii=False))
        return messages

    def _request(self, name: str, ids: tuple[int, ...]) -> Request:
        # Not the seed of the completion of this message: the Gumbel noise would be the same.
        seed = _noise_seed(self._settings.seed, f"user of {name}")
        room = self._settings.max_prompt_tokens - len(ids)
        return Request(name, ids, _SELF_CHAT_TEMPERATURE, seed, room)


def opening_ids(
    tokenizer: Tokenizer, text: str = "", before: Sequence[dict[str, str]] = ()
) -> tuple[int, ...]:
    """Return the ids of the messages before and of a user's message left open after `text`.

    `TokenizerError` if there is no chat template, or if it changes messages.
    """
    first, second = (_user_turn(tokenizer, before, probe) for probe in _PROBES)
    begin = _shared(first, second)
    if not begin or first == second:
        raise TokenizerError("the chat template has no place before the user's text to go on from")
    if not text:
        return tuple(first[:begin])
    after = _shared(first[begin:][::-1], second[begin:][::-1])
    whole = _user_turn(tokenizer, before, text)
    if whole[:begin] != first[:begin]:
        raise TokenizerError(f"the chat template does not open a message with {text!r} as it is")
    return tuple(whole[: len(whole) - after])


def _turn_id(prompt_id: str, turn: int) -> str:
    return prompt_id if turn == 1 else f"{prompt_id}/turn-{turn}"


def _noise_seed(seed: int, row_id: str) -> int:
    return _hash(seed, "noise", row_id) >> _DROPPED_BITS


def _hash(seed: int, purpose: str, row_id: str) -> int:
    text = f"{seed}\0{purpose}\0{row_id}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=_HASH_BYTES).digest(), "little")


def _user_turn(tokenizer: Tokenizer, before: Sequence[dict[str, str]], text: str) -> list[int]:
    messages = [*before, {"role": "user", "content": text}]
    return tokenizer.encode_chat(messages, add_generation_prompt=False)


def _shared(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the number of tokens that both begin with."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
