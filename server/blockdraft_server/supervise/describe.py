"""What a verifier drafts with, in words."""

import grpc

from blockdraft_protos.v1 import verifier_pb2, verifier_pb2_grpc


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
