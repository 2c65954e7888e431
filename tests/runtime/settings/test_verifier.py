import pytest

from blockdraft_runtime.settings.verifier import SliceSettings
from blockdraft_runtime.tpu import TpuHost

GKE = {
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "TPU_TOPOLOGY": "4x4",
    "TPU_WORKER_ID": "2",
    "TPU_WORKER_HOSTNAMES": "w-0.tpu,w-1.tpu,w-2.tpu,w-3.tpu",
}


def test_the_environment_of_a_slice_is_enough() -> None:
    host = TpuHost.from_environment(GKE)
    assert SliceSettings.of(host) == SliceSettings("w-0.tpu:8482", 4, 2)


@pytest.mark.parametrize("environ", [{}, {"TPU_ACCELERATOR_TYPE": "v5p-8"}])
def test_one_host_is_no_slice(environ: dict[str, str]) -> None:
    assert SliceSettings.of(TpuHost.from_environment(environ)) is None


@pytest.mark.parametrize(
    ("coordinator", "count", "number", "message"),
    [
        ("h", 2, 0, "host:port"),
        (":1", 2, 0, "host:port"),
        ("h:x", 2, 0, "host:port"),
        ("h:1", 1, 0, "at least 2"),
        ("h:1", 2, 2, "must be 0 to 1"),
        ("h:1", 2, -1, "at least 0"),
    ],
)
def test_what_is_out_of_range_is_refused(
    coordinator: str, count: int, number: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        SliceSettings(coordinator, count, number)


@pytest.mark.parametrize(("coordinator", "host"), [("h:1", "h"), ("[::1]:8482", "::1")])
def test_process_0_leads_at_the_coordinators_host(coordinator: str, host: str) -> None:
    leader, follower = (SliceSettings(coordinator, 2, number) for number in (0, 1))
    assert (leader.leads, follower.leads) == (True, False)
    assert follower.leader_host == host
