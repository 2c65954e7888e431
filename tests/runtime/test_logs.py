import logging
import re
from collections.abc import Iterator

import pytest

from blockdraft_runtime.logs import configure_logging


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


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="LOUD"):
        configure_logging("verifier", "loud")
