"""The summary that `blockdraft serve` prints once everything is ready."""

import asyncio
import time

import grpc

from blockdraft_protos.v1 import verifier_pb2, verifier_pb2_grpc
from blockdraft_runtime.settings.drafter import TRAINED_WITHOUT_THINKING
from blockdraft_server.supervise.plan import ServePlan

# A drafter that is ready is found within moments; one that died again is not waited for.
_ATTACH_SECONDS = 30.0
_POLL_SECONDS = 0.1
_NAMES = {"dflash": "DFlash", "eagle3": "EAGLE-3"}
_DEFAULT_PORT = "50051"


async def summary(plan: ServePlan, seconds: float) -> str:
    """Return the summary of a service that was ready after `seconds`."""
    if plan.follows and plan.host is not None:
        return (
            f"blockdraft takes part in the verifier of {plan.host.hostnames[0]} "
            f"as process {plan.host.worker_id} of {plan.host.num_hosts}"
        )
    patience = 0.0 if plan.drafter is None else _ATTACH_SECONDS
    description = await describe(plan.verifier.process.address, patience)
    activity = f"verifies {plan.verifier.target} on {plan.verifier.peer_address}"
    if plan.server is not None:
        activity = f"serves {plan.server.served_name} on {plan.server.process.address}"
    lines = [f"blockdraft {activity}, ready after {seconds:.0f} s"]
    if plan.server is not None and plan.server.openai is not None:
        scheme = "http" if plan.server.tls is None else "https"
        lines.append(f"  openai     {scheme}://{plan.server.openai}/v1")
    if isinstance(description, str):
        lines.append(f"  verifier   unknown ({description})")
    else:
        lines += [f"  {name:<9}  {text}" for name, text in facts(plan, description)]
    return "\n".join(lines)


def facts(
    plan: ServePlan, description: verifier_pb2.VerifierServiceDescribeResponse
) -> list[tuple[str, str]]:
    """Return label and text of each line of the summary."""
    exactness = description.exactness
    exact = "inexact (--allow-inexact)"
    if exactness.exact:
        exact = "exact" if description.canvas_tokens else "exact: drafting never changes a token"
    engine = plan.verifier.engine
    weights = ", int8 weights" if engine.weights == "int8" else ""
    rounding = " in fp8" if engine.kv_cache_dtype == "fp8" else ""
    lines = [
        ("model", f"{plan.verifier.target}, {exactness.dtype or 'untested'}{weights}, {exact}"),
        (
            "context",
            f"{description.max_context_tokens:,} tokens for each of up to "
            f"{description.max_sequences} sequences; "
            f"the KV cache holds {description.kv_cache_tokens:,}{rounding}",
        ),
        ("drafter", _drafter(plan, description)),
    ]
    if plan.server is not None:
        lines.append(("ask", _ask(plan.server.process.address)))
    return lines


async def describe(
    verifier_address: str, patience_seconds: float
) -> verifier_pb2.VerifierServiceDescribeResponse | str:
    """Return a verifier's description, or the status it failed with; waits for its drafter."""
    deadline = time.monotonic() + patience_seconds
    request = verifier_pb2.VerifierServiceDescribeRequest()
    async with grpc.aio.insecure_channel(verifier_address) as channel:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        try:
            description = await stub.Describe(request, timeout=5)
            while not description.HasField("drafter") and time.monotonic() < deadline:
                await asyncio.sleep(_POLL_SECONDS)
                description = await stub.Describe(request, timeout=5)
        except grpc.aio.AioRpcError as error:
            return error.code().name
    return description


def _drafter(plan: ServePlan, description: verifier_pb2.VerifierServiceDescribeResponse) -> str:
    if description.canvas_tokens:
        return f"none: the target denoises {description.canvas_tokens} tokens at a time"
    beside = "prompt lookup" if plan.verifier.engine.prompt_lookup else ""
    if not description.HasField("drafter"):
        return beside or "none: every token is decoded plainly"
    drafter = description.drafter
    words = f"{_NAMES.get(drafter.method, drafter.method)}, block of {drafter.block_size}, "
    words += "trained" if drafter.trained else "untrained"
    automatic = plan.drafter is not None and plan.drafter.drafter == "auto"
    if automatic and plan.verifier.target.lower() in TRAINED_WITHOUT_THINKING:
        words += " without thinking (less is accepted unless enable_thinking is false)"
    if plan.drafter is None:
        words += f", at {plan.verifier.drafter_address}"
    if plan.hosted:
        words += ", in the verifier's process"
    if plan.learns:
        words += ", learns from requests"
    return f"{words}; {beside}" if beside else words


def _ask(address: str) -> str:
    host, _, port = address.rpartition(":")
    is_default = port == _DEFAULT_PORT and host in ("127.0.0.1", "localhost", "0.0.0.0", "[::]", "")
    flag = "" if is_default else f" --address {address}"
    return f'blockdraft generate --chat "Why is the sky blue?"{flag}'
