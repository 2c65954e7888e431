"""Asks with LangChain, in every way, and prints what came as JSON."""

import asyncio
import json
import sys
from typing import Any

import openai
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI

URL, TEXT, STOP = sys.argv[1:]


def model(**options: Any) -> ChatOpenAI:
    fields = {"model": "tiny", "max_tokens": 24, "temperature": 0, "max_retries": 0}
    return ChatOpenAI(base_url=URL, api_key="none", **{**fields, **options})


async def together() -> list[str]:
    return [
        each.content for each in await asyncio.gather(*(model().ainvoke(TEXT) for _ in range(8)))
    ]


def refused() -> int:
    try:
        model().bind(modalities=["audio"]).invoke(TEXT)
    except openai.APIStatusError as error:
        return error.status_code
    return 0


ranked = model(max_tokens=8, logprobs=True, top_logprobs=2).invoke(TEXT)
several = model(n=2, temperature=1, seed=3).generate([[HumanMessage(TEXT)]])
found = {
    "whole": model().invoke(TEXT).content,
    "streamed": "".join(str(part.content) for part in model().stream(TEXT)),
    "sampled": model(temperature=1, seed=7).invoke(TEXT).content,
    "stopped": model().invoke(TEXT, stop=[STOP]).content,
    "together": asyncio.run(together()),
    "several": [each.text for each in several.generations[0]],
    "log_probs": [each["logprob"] for each in ranked.response_metadata["logprobs"]["content"]],
    "refused": refused(),
}
print(json.dumps(found))
