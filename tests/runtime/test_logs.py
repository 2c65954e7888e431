import json
import logging
import re
from collections.abc import Iterator

import pytest

from blockdraft_runtime.logs import configure_logging, recent_faults


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level


def test_a_line_tells_time_level_role_and_logger(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("verifier", "info")
    logging.getLogger("some.part").warning("hot")
    logging.getLogger("some.part").debug("hidden")
    error = capsys.readouterr().err
    pattern = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING verifier some\.part: hot\n"
    assert re.fullmatch(pattern, error)


def test_json_holds_the_same_and_what_the_event_is_about(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logging("server", "info", "json")
    logger = logging.getLogger("some.part")
    logger.warning("request %s is slow", "r1", extra={"request_id": "r1"})
    try:
        raise OSError("gone")
    except OSError:
        logger.exception("it failed")
    slow, failed = map(json.loads, capsys.readouterr().err.splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", slow.pop("time"))
    assert slow == {
        "level": "WARNING",
        "role": "server",
        "logger": "some.part",
        "message": "request r1 is slow",
        "request_id": "r1",
    }
    assert failed["exc_info"].endswith("OSError: gone")


def test_the_newest_faults_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("verifier", "info")
    logger = logging.getLogger("some.part")
    logger.info("fine")
    assert not recent_faults()
    for number in range(60):
        logger.warning("fault %d", number)
    said = [record.getMessage() for record in recent_faults()]
    assert said == [f"fault {number}" for number in range(10, 60)]
