"""`python -m tools.fuzz`: mutated messages and bytes to real processes, mutated files, grammars."""

import asyncio
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
from tests.e2e.openai_service import answers, running_service
from tests.supervised import process_ids
from tools.chaos.report import command_line, tell
from tools.chaos.run import defects, until_nothing_is_held
from tools.chaos.stack import Size, Stack, running_stack
from tools.fuzz import calls, files, grammar_process, sockets
from tools.fuzz.grammars import KINDS
from tools.fuzz.services import (
    Known,
    drafter_methods,
    inference_methods,
    known_draft,
    known_response,
    known_tokens,
    verifier_methods,
)

from blockdraft_bench.schemas.sample import read_examples
from blockdraft_models.weights.loading import load_checkpoint_config
from blockdraft_protos.v1 import drafter_pb2
from blockdraft_protos.v1.drafter_pb2_grpc import DrafterServiceStub

# What a process may have more of after all messages than after the first fifth of them.
MOST_GROWTH_MIB = 64
MOST_MORE_DESCRIPTORS = 16


async def fuzz_messages(seed: int, messages: int) -> dict[str, Any]:
    """Send so many messages to each service; return what came of them, by service."""
    found: dict[str, Any] = {}
    async with running_stack() as stack:
        for name in ("drafter", "verifier-1", "server"):
            found[name] = await _fuzz_process(stack, name, seed, messages)
        await stack.until_whole()
        found["held"] = {k: v for k, v in (await until_nothing_is_held(stack)).items() if v}
        found["log_errors"] = defects(stack.log)[:20]
    return found


async def _fuzz_process(stack: Stack, name: str, seed: int, messages: int) -> dict[str, Any]:
    process = process_ids(stack.supervisor)[name]
    async with stack.channel(name) as channel:
        methods, known = await _service(stack, name, channel)
        tally = await calls.fuzz(channel, methods, known, messages // 5, seed)
        warm = Size.of(process)
        more = await calls.fuzz(channel, methods, known, messages - messages // 5, seed + 1)
    end = Size.of(process)
    bad = [(path, [part.hex() for part in sent], how) for path, sent, how in tally.bad + more.bad]
    if process_ids(stack.supervisor).get(name) != process:
        bad.append((name, [], "the process died"))
    if end.mib - warm.mib > MOST_GROWTH_MIB:
        bad.append((name, [], f"grew from {warm.mib:.0f} to {end.mib:.0f} MiB"))
    if end.descriptors - warm.descriptors > MOST_MORE_DESCRIPTORS:
        bad.append((name, [], f"from {warm.descriptors} to {end.descriptors} descriptors"))
    return {
        "messages": tally.messages + more.messages,
        "responses": dict((tally.responses + more.responses).most_common()),
        "mib": [round(warm.mib), round(end.mib)],
        "descriptors": [warm.descriptors, end.descriptors],
        "threads": [warm.threads, end.threads],
        "bad": bad[:10],
    }


async def _service(
    stack: Stack, name: str, channel: grpc.aio.Channel
) -> tuple[tuple[calls.Method, ...], Known]:
    if name == "server":
        return inference_methods(), known_response(channel)
    if name != "drafter":
        return verifier_methods(), known_tokens(channel)
    stub: Any = DrafterServiceStub(channel)
    fingerprint = load_checkpoint_config(stack.target).fingerprint
    request = drafter_pb2.DrafterServiceDescribeRequest(target_fingerprint=fingerprint)
    methods = drafter_methods(await stub.Describe(request), fingerprint)
    return methods, known_draft(channel, methods)


def fuzz_sockets(seed: int, count: int) -> dict[str, Any]:
    """Send so much that is nearly HTTP to a service; return what came of it."""
    os.environ["BLOCKDRAFT_SERVE_LOG_LEVEL"] = "debug"
    with tempfile.TemporaryDirectory() as folder:
        with running_service(Path(folder)) as service:
            host, _, port = service.http.removeprefix("http://").rpartition(":")
            endings = asyncio.run(sockets.fuzz(host, int(port), count, seed))
            bad = [] if answers(f"{service.http}/health") else ["it serves no longer"]
        log = (Path(folder) / "log").read_bytes()
    bad += [f"{secret} is in a log" for secret in sockets.leaks(log)]
    bad += [ending for ending in endings if ending.startswith("5")]
    return {"requests": count, "endings": dict(endings), "log_bytes": len(log), "bad": bad}


def fuzz_files(seed: int, count: int) -> dict[str, Any]:
    """Open so many files; return what came of them."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BLOCKDRAFT_CACHE"] = f"{folder}/cache"
        tally = files.fuzz(files.tiny_files(Path(folder)), count, seed)
    bad = Counter(f"{name}: {ending}" for name, ending, _ in tally.bad)
    return {"files": count, "endings": dict(sorted(tally.endings.items())), "bad": dict(bad)}


def fuzz_grammars(seed: int, count: int, target: str | None) -> dict[str, Any]:
    """Follow so many grammars; return what came of them, and which took longest."""
    schemas = [example.schema for example in read_examples()]
    tally = grammar_process.fuzz(schemas, tuple(KINDS), count, seed, target)
    return {
        "grammars": count,
        "endings": dict(sorted(tally.endings.items())),
        "slowest": {name: slow._asdict() for name, slow in tally.slowest.items()},
        "slow": dict(tally.slow),
        "mib": tally.mib,
        "bad": tally.bad[:10],
    }


def main() -> int:
    """Run what the command line says; 1 if anything bad came of it."""
    parser = command_line("fuzz", __doc__)
    parser.add_argument("--messages", type=int, default=100_000, help="to each service")
    parser.add_argument("--requests", type=int, default=10_000, help="that are nearly HTTP")
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--grammars", type=int, default=20_000)
    parser.add_argument("--target", help="whose tokens grammars are over; unset: a tiny vocabulary")
    args = parser.parse_args()
    found: dict[str, Any] = {"seed": args.seed}
    if args.messages:
        found["messages"] = asyncio.run(fuzz_messages(args.seed, args.messages))
    if args.requests:
        found["sockets"] = fuzz_sockets(args.seed, args.requests)
    if args.files:
        found["files"] = fuzz_files(args.seed, args.files)
    if args.grammars:
        found["grammars"] = fuzz_grammars(args.seed, args.grammars, args.target)
    tell(found, args.output)
    services = found.get("messages", {})
    bad = [each["bad"] for each in services.values() if isinstance(each, dict) and "bad" in each]
    bad += [services.get("held"), services.get("log_errors")]
    bad += [found.get(name, {}).get("bad") for name in ("sockets", "files", "grammars")]
    print("BAD: see above" if any(bad) else "GOOD: only responses and clear errors")
    return int(any(bad))


if __name__ == "__main__":
    sys.exit(main())
