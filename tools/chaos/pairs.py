"""`python -m tools.chaos.pairs ADDRESS`: completions of a service, plain and drafted, compared.

Of each prompt of the test sets a greedy and a sampled one, alone and among others; exit code 1 if
one of them differs. The two share a prompt, so that pages are shared too.
"""

import argparse
import asyncio
import itertools
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from blockdraft_client import AsyncClient, ChatMessage, SamplingParams, SpeculationParams

CONCURRENCIES = (1, 6, 16)
PLAIN = SpeculationParams(disabled=True)


@dataclass
class Count:
    """What was compared at one concurrency."""

    pairs: int = 0
    different: int = 0
    drafted_tokens: int = 0
    seconds: float = 0.0


def prompts(folder: Path) -> list[str]:
    """Return the first turns of all test sets, from each set in turn."""
    files = [path.read_text("utf-8").splitlines() for path in sorted(folder.glob("*.jsonl"))]
    turns = itertools.chain.from_iterable(itertools.zip_longest(*files))
    return [json.loads(line)["turns"][0] for line in turns if line]


async def compare(
    client: AsyncClient, texts: list[str], concurrency: int, max_tokens: int
) -> Count:
    """Compare two completions of each text, greedy and sampled, so many at a time."""
    count, gate, started = Count(), asyncio.Semaphore(concurrency), time.monotonic()

    async def pair(index: int, text: str) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, temperature=float(index % 2), seed=index)
        messages = [ChatMessage("user", text[:2000])]
        async with gate:
            drafted = await client.generate(messages, sampling=sampling)
            plain = await client.generate(messages, sampling=sampling, speculation=PLAIN)
        count.pairs += 1
        count.different += drafted.token_ids != plain.token_ids
        count.drafted_tokens += drafted.usage.drafted_tokens

    twice = [text for text in texts for _ in range(2)]
    await asyncio.gather(*(pair(index, text) for index, text in enumerate(twice)))
    count.seconds = time.monotonic() - started
    return count


async def run(arguments: argparse.Namespace) -> int:
    """Compare at each concurrency and print what was found."""
    texts, different = prompts(arguments.datasets), 0
    share = -(-arguments.completions // (2 * len(CONCURRENCIES)))
    async with AsyncClient(arguments.address, timeout=3600) as client:
        for number, concurrency in enumerate(CONCURRENCIES):
            chosen = texts[number * share : (number + 1) * share]
            count = await compare(client, chosen, concurrency, arguments.max_tokens)
            print(f"{concurrency} at a time: {count}", flush=True)
            different += count.different
    return int(different > 0)


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tools.chaos.pairs", description=__doc__)
    parser.add_argument("address", help="of a running service")
    parser.add_argument("--datasets", type=Path, required=True, help="folder of the test sets")
    parser.add_argument("--completions", type=int, default=1000)
    parser.add_argument("--max-tokens", type=int, default=32)
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
