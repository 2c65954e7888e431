"""The line with which `blockdraft serve` says that everything is ready."""

import grpc

from blockdraft_protos.v1 import verifier_pb2, verifier_pb2_grpc
from blockdraft_server.supervise.plan import ServePlan


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
    drafter = await describe_drafter(plan.verifier.process.address)
    return (
        f"blockdraft serves {plan.server.served_name} on {plan.server.process.address}, "
        f"drafter: {drafter}, ready after {seconds:.1f} s"
    )


async def describe_drafter(verifier_address: str) -> str:
    """Return a few words about the drafter attached to a verifier."""
    async with grpc.aio.insecure_channel(verifier_address) as channel:
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)
        try:
            description = await stub.Describe(
                verifier_pb2.VerifierServiceDescribeRequest(), timeout=5
            )
        except grpc.aio.AioRpcError as error:
            return f"unknown ({error.code().name})"
    if not description.HasField("drafter"):
        return "none"
    drafter = description.drafter
    training = "trained" if drafter.trained else "untrained"
    return f"{drafter.method}, block of {drafter.block_size}, {training}"
