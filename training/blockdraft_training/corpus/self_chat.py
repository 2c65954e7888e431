"""Prompts that the target makes up itself: the user's turn, sampled after its opening.

They need no data set, and resemble what the target was tuned on (Xu et al. 2024, "Magpie"). They
are kept in a prompt file beside the corpus, so that an interrupted run does not make them again.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path

from blockdraft_models.tokenizer.tokenizer import Tokenizer, TokenizerError
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


def made_up_prompts(
    settings: CorpusSettings,
    tokenizer: Tokenizer,
    generate: Callable[[Sequence[Request]], Iterator[Answer]],
) -> list[Prompt]:
    """Return as many made-up prompts as the settings ask for, in order; make those that lack.

    A user's turn that is empty, does not end within the longest prompt or breaks off within a
    character gives a prompt with an empty text: it is not tried again.

    Args:
        settings: How many, how they begin, how long they may be.
        tokenizer: The target's.
        generate: Lets the target go on.

    Raises:
        ValueError: If an opening leaves no room, or the chat template cannot be used.
        CorpusError: If the file of prompts is damaged or cannot be written.
    """
    requests = _requests(settings, tokenizer)
    if not requests:
        return []
    file = PromptFile(SOURCE, self_chat_path(settings.output))
    opening = {
        request.id: settings.openings[index % len(settings.openings)]
        for index, request in enumerate(requests)
    }
    with LineFile(file.path) as lines:
        made = {prompt.id: prompt for prompt in read_prompts(file)}
        for answer in generate([request for request in requests if request.id not in made]):
            name = answer.request.id
            text = _text(tokenizer, opening[name], answer)
            lines.append(json.dumps({"id": name, "turns": [text]}, ensure_ascii=False))
            made[name] = Prompt(name, SOURCE, (text,))
    return [made[request.id] for request in requests]


def _requests(settings: CorpusSettings, tokenizer: Tokenizer) -> list[Request]:
    """Return requests whose answers are user turns."""
    encoded = [opening_ids(tokenizer, text) for text in settings.openings]
    for text, ids in zip(settings.openings, encoded, strict=True):
        if len(ids) >= settings.max_prompt_tokens:
            raise ValueError(f"the opening {text!r} takes {len(ids)} tokens: no room for more")
    requests = []
    for index in range(settings.self_chat):
        ids = encoded[index % len(encoded)]
        name = f"{SOURCE}/{index}"
        # Not the seed of the answer to this prompt: the noise would be the same.
        seed = answer_seed(settings.seed, f"user of {name}")
        requests.append(
            Request(name, ids, TEMPERATURE, seed, settings.max_prompt_tokens - len(ids))
        )
    return requests


def _text(tokenizer: Tokenizer, opening: str, answer: Answer) -> str:
    text = (opening + tokenizer.decode(answer.token_ids)).strip()
    return "" if answer.cut or "\N{REPLACEMENT CHARACTER}" in text else text


def opening_ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Return a conversation up to where the user has said `text` and goes on.

    Args:
        tokenizer: Its chat template says how a conversation opens.
        text: How the user begins; empty for nothing.

    Raises:
        TokenizerError: If there is no chat template, or it does not put messages in as they are.
    """
    first, second = (_user_turn(tokenizer, probe) for probe in _PROBES)
    before = _shared(first, second)
    if not before or first == second:
        raise TokenizerError("the chat template has no place before the user's text to go on from")
    if not text:
        return tuple(first[:before])
    after = _shared(first[before:][::-1], second[before:][::-1])
    whole = _user_turn(tokenizer, text)
    if whole[:before] != first[:before]:
        raise TokenizerError(f"the chat template does not open a message with {text!r} as it is")
    return tuple(whole[: len(whole) - after])


def _user_turn(tokenizer: Tokenizer, text: str) -> list[int]:
    messages = [{"role": "user", "content": text}]
    return tokenizer.encode_chat(messages, add_generation_prompt=False)


def _shared(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
