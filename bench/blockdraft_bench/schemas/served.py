"""Completions of a service that runs: a model's, with the schema as a constraint or without."""

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from blockdraft_bench.schemas.random_answers import SchemaAnswer
from blockdraft_bench.schemas.sample import Example
from blockdraft_client.client import Client
from blockdraft_client.constraints import OutputConstraint
from blockdraft_client.errors import InvalidRequestError
from blockdraft_client.params import ChatMessage

QUESTION = "Make up a short example."
INSTRUCTION = "Answer with nothing but JSON that is valid under this JSON Schema:"


def served_answers(
    client: Client,
    examples: Sequence[Example],
    *,
    constrained: bool,
    max_tokens: int,
    max_prompt_characters: int,
    concurrency: int,
) -> Iterator[SchemaAnswer | str]:
    """Yield a greedy completion for each example in turn, or the reason that it was refused."""

    def ask(example: Example) -> SchemaAnswer | str:
        schema = json.dumps(example.schema)
        text = f"{example.prompt or QUESTION}\n\n{INSTRUCTION}\n{schema}"[:max_prompt_characters]
        try:
            completion = client.generate(
                [ChatMessage("user", text)],
                constraint=OutputConstraint(json_schema=schema) if constrained else None,
                max_tokens=max_tokens,
                temperature=0.0,
            )
        except InvalidRequestError as error:
            return error.message
        usage = completion.usage
        return SchemaAnswer(
            text=completion.text,
            ended=completion.finish_reason == "stop",
            tokens=len(completion.token_ids),
            forced_tokens=usage.forced_tokens if usage else 0,
        )

    with ThreadPoolExecutor(concurrency) as executor:
        yield from executor.map(ask, examples)
