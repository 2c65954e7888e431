from pathlib import Path

import pytest

from blockdraft_client.cli.main import main
from blockdraft_server.keys import Tenant, digest_of, line_of, parse_keys

ACME = f"acme sha256:{digest_of('alpha').hex()}"


def test_a_file_lists_keys_alone_and_tenants_with_digests() -> None:
    text = f"# team\nplain\n\n  other-plain  \n{ACME} max-tokens=500 max-requests=3\n"
    keys = parse_keys(text)
    assert set(keys) == {digest_of(key) for key in ("plain", "other-plain", "alpha")}
    acme = keys[digest_of("alpha")]
    assert (acme.name, acme.max_requests, acme.max_tokens) == ("acme", 3, 500)
    plain, other = keys[digest_of("plain")], keys[digest_of("other-plain")]
    assert (plain.name, plain.max_requests, plain.max_tokens) == ("unnamed", None, None)
    assert plain.name == other.name
    assert len({plain.salt, other.salt, acme.salt, b""}) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# none\n", "no API key"),
        (f"sha256:{'0' * 64}", "line 1: a digest needs the name"),
        ("fine\nacme my-secret", "line 2: after the tenant's name"),
        ("acme my-secret beta", "line 1: after the tenant's name"),
        (f"Acme! sha256:{'0' * 64}", "line 1: the tenant's name"),
        (f"other sha256:{'0' * 64}", "line 1: the tenant's name"),
        (f"{ACME} max-requests=0", "line 1: after the digest"),
        (f"{ACME} max-requests=1 max-requests=2", "line 1: after the digest"),
        (f"{ACME} unlimited", "line 1: after the digest"),
        (f"{ACME} background background", "line 1: after the digest"),
        (f"{ACME}\n{ACME} background", "line 2: acme has other limits"),
        (f"{ACME} no-learning no-learning", "line 1: after the digest"),
        (f"{ACME}\nacme sha256:{'0' * 64} no-learning", "line 2: acme has other limits"),
        (f"{ACME}\nacme sha256:{'0' * 64} max-requests=1", "line 2: acme has other limits"),
        (f"{ACME}\nalpha", "line 2: the key belongs to another tenant"),
    ],
)
def test_what_is_malformed_is_named_and_never_quoted(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        parse_keys(text)
    assert "secret" not in str(caught.value)


def test_a_line_lets_its_key_in_and_does_not_hold_it() -> None:
    line = line_of("acme", "alpha", 3, None, background=True, recordable=False)
    assert line == f"{ACME} max-requests=3 background no-learning"
    tenant = parse_keys(line)[digest_of("alpha")]
    assert (tenant.max_requests, tenant.background, tenant.recordable) == (3, True, False)
    line = line_of("acme", "alpha", None, 5)
    assert line == f"{ACME} max-tokens=5"
    tenant = parse_keys(line)[digest_of("alpha")]
    assert (tenant.max_tokens, tenant.background, tenant.recordable) == (5, False, True)
    with pytest.raises(ValueError, match="name"):
        line_of("no name", "alpha", None, None)


def test_a_tenant_may_be_kept_out_of_samples() -> None:
    assert parse_keys(ACME)[digest_of("alpha")].recordable
    assert not parse_keys(f"{ACME} no-learning max-tokens=5")[digest_of("alpha")].recordable


def test_limits_are_no_part_of_what_tells_tenants_apart() -> None:
    few, many = (parse_keys(f"{ACME} max-requests={n}")[digest_of("alpha")] for n in (1, 2))
    assert few != many
    assert few.salt == many.salt
    assert isinstance(few, Tenant)


def test_prints_a_key_and_the_line_that_lets_it_in(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", "acme", "--max-requests", "4"]) == 0
    key, line = capsys.readouterr().out.splitlines()
    assert key not in line
    tenant = parse_keys(line)[digest_of(key)]
    assert (tenant.name, tenant.max_requests, tenant.max_tokens) == ("acme", 4, None)


def test_adds_to_a_file_that_only_its_owner_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys"
    assert main(["keys", "new", "acme", "--file", str(path)]) == 0
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text(path.read_text().rstrip("\n"))  # as an editor may leave it
    assert main(["keys", "new", "acme", "--file", str(path)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    keys = parse_keys(path.read_text())
    assert keys[digest_of(first)] == keys[digest_of(second)]
    assert first not in path.read_text()


def test_refuses_what_would_break_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys"
    assert main(["keys", "new", "acme", "--file", str(path)]) == 0
    before = path.read_text()
    assert main(["keys", "new", "acme", "--max-tokens", "9", "--file", str(path)]) == 2
    assert "other limits" in capsys.readouterr().err
    assert main(["keys", "new", "no name"]) == 2
    assert path.read_text() == before
