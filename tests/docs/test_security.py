"""docs/security.md names tests that exist."""

import re

from tests.docs.pages import ROOT, read


def test_what_is_said_to_be_shown_is_tested() -> None:
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text("utf-8"), re.M)
    }
    named = set(re.findall(r"`(test_\w+)`", read("docs/security.md")))
    assert len(named) > 30
    assert named <= defined
