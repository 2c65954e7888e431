"""The line with which `blockdraft serve` says that everything is ready."""

import asyncio
import time

import grpc

from blockdraft_protos.v1 import verifier_pb2, verifier_pb2_grpc
from blockdraft_server.supervise.plan import ServePlan

# A drafter that is ready is found within moments; one that died again is not waited for.
ATTACH_SECONDS = 30.0
_LOOK_SECONDS = 0.1


async def announcement(plan: ServePlan, seconds: float) -> str:
    """Return the line.

    Args:
        plan: What is served.
        seconds: How long it took until everything was ready.
    """
    if plan.follows and plan.host is not None:
        return (
            f"blockdraft takes part in the verifier of {plan.host.hostnames[0]} "
            f"as process {plan.host.worker_id} of {plan.host.num_hosts}"
        )
    patience = 0.0 if plan.drafter is None else ATTACH_SECONDS
    drafter = await describe_drafter(plan.verifier.process.address, patience)
    what = f"verifies {plan.verifier.target} on {plan.verifier.peer_address}"
    if plan.server is not None:
        what = f"serves {plan.server.served_name} on {plan.server.process.address}"
    return f"blockdraft {what}, drafter: {drafter}, ready after {seconds:.1f} s"


async def describe_drafter(verifier_address: str, patience_seconds: float) -> str:
    """Return a few words about the drafter attached to a verifier.

    Args:
        verifier_address: Where it listens.
        patience_seconds: How long to wait for a drafter to be attached.
    """
    deadline = time.monotonic() + patience_seconds
    request = verifier_pb2.VerifierServiceDescribeRequest()
    async with grpc.aio.insecure_channel(verifier_address) as channel:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        try:
            description = await stub.Describe(request, timeout=5)
            while not description.HasField("drafter") and time.monotonic() < deadline:
                await asyncio.sleep(_LOOK_SECONDS)
                description = await stub.Describe(request, timeout=5)
        except grpc.aio.AioRpcError as error:
            return f"unknown ({error.code().name})"
    if not description.HasField("drafter"):
        return "none"
    drafter = description.drafter
    training = "trained" if drafter.trained else "untrained"
    return f"{drafter.method}, block of {drafter.block_size}, {training}"
