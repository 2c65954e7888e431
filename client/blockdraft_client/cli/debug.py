"""`blockdraft debug`: show the processes of a service from inside, on the host where they run."""

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from blockdraft_client.cli.output import FAILED, OK, CommandFailedError, print_json

CALL_SECONDS = 5.0
# Temporary folders of `blockdraft serve` without --run-dir.
RUN_FOLDERS = "blockdraft-*"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft debug`."""
    parser.description = (
        "Prints scheduler, sequences, draft KV caches, verifiers and recent faults of each "
        "process of `blockdraft serve`. Exits 1 if one does not respond."
    )
    parser.add_argument(
        "address",
        nargs="*",
        help="internal address of a verifier or drafter, or control address of a server "
        "(default: those in the run folders)",
    )
    parser.add_argument(
        "--run-dir",
        type=Path,
        metavar="DIR",
        help="folder of the sockets, as told to `serve` (default: all temporary ones)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the state of each process."""
    addresses = args.address or _addresses(args.run_dir)
    if not addresses:
        folder = args.run_dir or Path(tempfile.gettempdir()) / RUN_FOLDERS
        raise CommandFailedError(f"no sockets of a service in {folder}")
    reports = {address: _ask(address) for address in addresses}
    if args.json:
        print_json(reports)
    else:
        texts = ("\n".join(_lines(address, report)) for address, report in reports.items())
        print("\n\n".join(texts))
    return OK if all("error" not in report for report in reports.values()) else FAILED


def _addresses(run_dir: Path | None) -> list[str]:
    folders = [run_dir] if run_dir else sorted(Path(tempfile.gettempdir()).glob(RUN_FOLDERS))
    return [f"unix:{socket}" for folder in folders for socket in sorted(folder.glob("*.sock"))]


def _ask(address: str) -> dict[str, Any]:
    """Return the state that a process reports, or the error of the call."""
    # Imported here: `blockdraft --help` must not wait for gRPC.
    import grpc
    from google.protobuf.json_format import MessageToDict

    from blockdraft_protos.v1 import debug_pb2, debug_pb2_grpc

    with grpc.insecure_channel(address) as channel:
        stub = debug_pb2_grpc.DebugServiceStub(channel)
        try:
            response = stub.GetState(debug_pb2.GetStateRequest(), timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            code = error.code().name if isinstance(error, grpc.Call) else "UNKNOWN"
            return {"error": code}
    return {
        "role": response.role,
        "process_id": response.process_id,
        "uptime_seconds": round(response.uptime_seconds, 1),
        "state": _whole_numbers(MessageToDict(response.state)),
        "recent_faults": [
            {
                "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(fault.time_seconds)),
                "level": fault.level,
                "logger": fault.logger,
                "message": fault.message,
            }
            for fault in response.recent_faults
        ],
    }


def _whole_numbers(value: Any) -> Any:
    """Return a value as it was before a Struct made floats of all numbers; names in order."""
    if isinstance(value, dict):
        return {name: _whole_numbers(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [_whole_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _lines(address: str, report: Mapping[str, Any]) -> Iterator[str]:
    if "error" in report:
        yield f"{address}: {report['error']}"
        return
    about = f"process {report['process_id']}, up {report['uptime_seconds']:g} s"
    yield f"{report['role']} at {address} ({about})"
    yield from _entries(report["state"], "  ")
    yield "  recent faults:" + ("" if report["recent_faults"] else " none")
    for fault in report["recent_faults"]:
        yield f"    {fault['time']} {fault['level']} {fault['logger']}: {fault['message']}"


def _entries(values: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield f"{indent}{name}:"
            yield from _entries(value, indent + "  ")
        elif _is_table(value):
            yield f"{indent}{name}: {len(value)}"
            yield from (f"{indent}  {_pairs(row)}" for row in value)
        else:
            yield f"{indent}{name}: {_text(value)}"


def _is_table(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(row, Mapping) for row in value)


def _pairs(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_text(value)}" for name, value in values.items())


def _text(value: object) -> str:
    if isinstance(value, list):
        return "[" + " ".join(map(_text, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return "-" if value is None else str(value)
