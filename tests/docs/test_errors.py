"""Errors and the architecture list what the code raises and counts."""

import ast
from collections.abc import Iterator

import grpc
from tests.docs.pages import code, read, rows, section, sources

from blockdraft_client import ApiError, DeadlineExceededError, OverloadedError
from blockdraft_client.cli import output
from blockdraft_client.error_mapping import ERROR_OF_CODE
from blockdraft_protos.v1 import drafter_pb2

ERRORS = "docs/errors.md"
PUBLIC = "Reasons of the public API"
ARCHITECTURE = "docs/architecture.md"
INTERNAL = "Reasons between the processes"


def calls(*names: str) -> Iterator[ast.Call]:
    """Yield every call of a function or method of these names in the project's code."""
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else None
            name = function.id if isinstance(function, ast.Name) else name
            if name in names:
                yield node


def texts(call: ast.Call) -> list[str]:
    """Return the arguments of a call that are literal texts."""
    return [
        argument.value
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]


def raised() -> set[tuple[str, str]]:
    """Return status and reason of every error the code makes."""
    found = set()
    for call in calls("ServiceError"):
        status, reason = call.args[:2]
        if isinstance(status, ast.Attribute) and isinstance(reason, ast.Constant):
            found.add((status.attr, str(reason.value)))
        elif isinstance(status, ast.Attribute) and isinstance(reason, ast.Name):
            # A constant is called what it says.
            found.add((status.attr, reason.id))
    return found


def documented() -> set[tuple[str, str]]:
    internal = rows(section(read(ARCHITECTURE), INTERNAL), 5)
    cells = [*rows(section(read(ERRORS), PUBLIC), 6), *internal]
    return {(row[0], code(row[1])[0]) for row in cells}


def test_every_reason_is_listed_and_no_other() -> None:
    assert len(raised()) > 10
    assert documented() == raised()


def test_exceptions_are_those_of_the_sdk() -> None:
    for status, _, _, _, exception, _ in rows(section(read(ERRORS), PUBLIC), 6):
        kind = ERROR_OF_CODE.get(grpc.StatusCode[status], DeadlineExceededError)
        assert code(exception) == [kind.__name__]
    assert issubclass(OverloadedError, ApiError)


def test_every_refusal_of_a_sequence_is_listed() -> None:
    listed = {code(row[0])[0] for row in rows(section(read(ARCHITECTURE), INTERNAL), 3)}
    names = {
        name.removeprefix("SEQUENCE_ERROR_CODE_")
        for name in drafter_pb2.SequenceErrorCode.keys()  # noqa: SIM118
    }
    assert listed == names - {"UNSPECIFIED"}


def test_every_repair_is_listed() -> None:
    causes = {
        text for call in calls("_on_repair", "_rebuild", "_lose_transport") for text in texts(call)
    }
    assert len(causes) > 3
    sync = rows(section(read(ARCHITECTURE), "Accepted-token sync"), 4)
    assert {cause for row in sync for cause in code(row[2])} == causes


def test_exit_codes_are_listed() -> None:
    listed = [row[0] for row in rows(section(read(ERRORS), "Exit codes"), 2)]
    codes = (output.OK, output.FAILED, output.USAGE, output.INTERRUPTED)
    assert listed == [str(number) for number in codes]
