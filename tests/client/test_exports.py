"""What `blockdraft_client` exports; its names are looked up when they are first used."""

import pytest

import blockdraft_client


@pytest.mark.parametrize("name", blockdraft_client.__all__)
def test_every_exported_name_has_a_value(name: str) -> None:
    value = getattr(blockdraft_client, name)
    if isinstance(value, type):
        assert value.__name__ == name


def test_another_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Server'"):
        _ = blockdraft_client.Server  # type: ignore[attr-defined]  # the point of the test
