"""What the user says, made up by the target: the user's turn, sampled after its opening.

Such prompts need no data set, and resemble what the target was tuned on (Xu et al. 2024, "Magpie").
They are kept in a prompt file beside the corpus, so that an interrupted run does not make them
again.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from blockdraft_models.errors import TokenizerError
from blockdraft_models.tokenizer.tokenizer import Tokenizer
from blockdraft_training.corpus.conversations import REPLACEMENT, Conversation, turn_id
from blockdraft_training.corpus.line_file import LineFile
from blockdraft_training.corpus.prompts import Prompt, PromptFile, read_prompts
from blockdraft_training.corpus.requests import answer_seed
from blockdraft_training.corpus.settings import CorpusSettings
from blockdraft_training.generation.generator import Answer, Request

SOURCE = "self-chat"
TEMPERATURE = 1.0
# Two messages that share no token: what is the same around both is the template's.
_PROBES = ("a", "0")


def self_chat_path(corpus: Path) -> Path:
    """Return where the made-up prompts of a corpus lie."""
    return corpus.with_name(f"{corpus.stem}.{SOURCE}.jsonl")


@dataclass(frozen=True, slots=True)
class Opening:
    """A conversation up to where the user goes on.

    Attributes:
        name: Of the message.
        ids: Its tokens.
        text: How the message begins.
    """

    name: str
    ids: tuple[int, ...]
    text: str = ""


def made_up_prompts(
    settings: CorpusSettings,
    tokenizer: Tokenizer,
    generate: Callable[[Sequence[Request]], Iterator[Answer]],
) -> list[Prompt]:
    """Return as many made-up prompts as the settings ask for, in order; make those that lack.

    Those that cannot be used have an empty text; see `_made_up`.

    Args:
        settings: How many, how they begin, how long they may be.
        tokenizer: The target's.
        generate: Lets the target go on.

    Raises:
        ValueError: If an opening leaves no room, or the chat template cannot be used.
        CorpusError: If the file of prompts is damaged or cannot be written.
    """
    if not settings.self_chat:
        return []
    encoded = [opening_ids(tokenizer, text) for text in settings.openings]
    for text, ids in zip(settings.openings, encoded, strict=True):
        if len(ids) >= settings.max_prompt_tokens:
            raise ValueError(f"the opening {text!r} takes {len(ids)} tokens: no room for more")
    openings = []
    for index in range(settings.self_chat):
        turn = index % len(encoded)
        openings.append(Opening(f"{SOURCE}/{index}", encoded[turn], settings.openings[turn]))
    made = _made_up(settings, openings, tokenizer, generate)
    return [Prompt(opening.name, SOURCE, (made[opening.name],)) for opening in openings]


def made_up_messages(
    settings: CorpusSettings,
    conversations: Sequence[Conversation],
    tokenizer: Tokenizer,
    generate: Callable[[Sequence[Request]], Iterator[Answer]],
) -> list[str]:
    """Return what the user says next in each conversation; make what lacks.

    What cannot be used is empty; see `_made_up`. So is what has no room.

    Args:
        settings: How long conversations may be.
        conversations: The target's answer is the last in each.
        tokenizer: The target's.
        generate: Lets the target go on.

    Raises:
        ValueError: If the chat template cannot be used.
        CorpusError: If the file of prompts is damaged or cannot be written.
    """
    names = [turn_id(each.prompt.id, each.turn + 1) for each in conversations]
    openings = [
        Opening(name, opening_ids(tokenizer, before=conversation.messages))
        for name, conversation in zip(names, conversations, strict=True)
    ]
    openings = [each for each in openings if len(each.ids) < settings.max_prompt_tokens]
    made = _made_up(settings, openings, tokenizer, generate)
    return [made.get(name, "") for name in names]


def _made_up(
    settings: CorpusSettings,
    openings: Sequence[Opening],
    tokenizer: Tokenizer,
    generate: Callable[[Sequence[Request]], Iterator[Answer]],
) -> dict[str, str]:
    """Return the user's messages by name; those that the file lacks are made and written to it.

    A message that is empty, does not end within the longest prompt or breaks off within a character
    is kept as an empty text: it is not tried again.
    """
    if not openings:
        return {}
    file = PromptFile(SOURCE, self_chat_path(settings.output))
    with LineFile(file.path) as lines:
        made = {prompt.id: prompt.text for prompt in read_prompts(file)}
        lacking = {opening.name: opening for opening in openings if opening.name not in made}
        requests = [_request(settings, opening) for opening in lacking.values()]
        for answer in generate(requests):
            name = answer.request.id
            made[name] = _text(tokenizer, lacking[name].text, answer)
            lines.append(json.dumps({"id": name, "turns": [made[name]]}, ensure_ascii=False))
    return made


def _request(settings: CorpusSettings, opening: Opening) -> Request:
    # Not the seed of the answer to this message: the noise would be the same.
    seed = answer_seed(settings.seed, f"user of {opening.name}")
    room = settings.max_prompt_tokens - len(opening.ids)
    return Request(opening.name, opening.ids, TEMPERATURE, seed, room)


def _text(tokenizer: Tokenizer, opening: str, answer: Answer) -> str:
    text = (opening + tokenizer.decode(answer.token_ids)).strip()
    return "" if answer.cut or REPLACEMENT in text else text


def opening_ids(
    tokenizer: Tokenizer, text: str = "", before: Sequence[dict[str, str]] = ()
) -> tuple[int, ...]:
    """Return a conversation up to where the user has said `text` and goes on.

    Args:
        tokenizer: Its chat template says how a message opens.
        text: How the user begins; empty for nothing.
        before: What was said before.

    Raises:
        TokenizerError: If there is no chat template, or it does not put messages in as they are.
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


def _user_turn(tokenizer: Tokenizer, before: Sequence[dict[str, str]], text: str) -> list[int]:
    messages = [*before, {"role": "user", "content": text}]
    return tokenizer.encode_chat(messages, add_generation_prompt=False)


def _shared(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
