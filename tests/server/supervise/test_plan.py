import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.command_lines import parse
from tests.patience import PATIENCE_SECONDS

from blockdraft_runtime.settings.process import ProcessSettings
from blockdraft_runtime.settings.server import ServerSettings
from blockdraft_runtime.settings.verifier import SliceSettings
from blockdraft_server.supervise.command import CONFIGURATION
from blockdraft_server.supervise.plan import HOSTED, ServePlan

FOLDER = Path("/run/bd")


def plan(*flags: str, folder: Path = FOLDER, **environ: str) -> ServePlan:
    return ServePlan.of(CONFIGURATION.resolve(parse(CONFIGURATION, *flags), {}), folder, environ)


def test_learning_starts_a_trainer_that_watches_the_verifier(tmp_path: Path) -> None:
    result = plan(
        *("--target", "t", "--drafter", "d", "--learn", "--learn-dir", str(tmp_path)),
        *("--learn-share", "0.5", "--metrics-port", "9100"),
    )
    assert result.learns
    drafter, trainer = result.children()[2:]
    assert {"--learn", f"--learn-dir={tmp_path}", "--learn-share=0.5"} <= set(drafter.command)
    assert trainer.health_address is None
    assert trainer.command[1:3] == ("-m", "blockdraft_training.online")
    assert set(trainer.command[3:]) == {
        *("--target=t", "--drafter=d", f"--directory={tmp_path}"),
        *("--watch=http://127.0.0.1:9101/metrics", "--metrics-port=9103"),
        "--metrics-address=127.0.0.1",
    }
    assert trainer.environment is not None
    # It must not take a chip.
    assert trainer.environment["JAX_PLATFORMS"] == "cpu"
    unwatched = plan("--learn")
    assert unwatched.watching(9).verifier.process.metrics_port == 9
    assert not plan("--learn", "--no-drafter").learns
    assert not plan().learns


def test_without_a_server_those_of_other_hosts_find_the_verifier() -> None:
    tls = ("--peer-tls-cert=c", "--peer-tls-key=k", "--peer-tls-ca=a")
    flags = ("--no-server", "--peer-listen=0.0.0.0:50052", "--metrics-port=9100", *tls)
    verifier, drafter = plan(*flags).children()
    assert {"--peer-listen=0.0.0.0:50052", *tls} <= set(verifier.command)
    # The supervisor, and probes of its pod, look at it by the socket, where no certificate is.
    assert "--listen=unix:/run/bd/verifier.sock" in verifier.command
    assert verifier.health_address == "unix:/run/bd/verifier.sock"
    # Ports are those that they have with a server.
    assert "--metrics-port=9101" in verifier.command
    assert "--metrics-port=9102" in drafter.command
    assert not set(tls) & set(drafter.command)
    # There may be a server beside them.
    server, verifier, _ = plan("--peer-listen=0.0.0.0:50052").children()
    assert "--verifier=unix:/run/bd/verifier.sock" in server.command
    assert "--peer-listen=0.0.0.0:50052" in verifier.command


def test_children_are_listed_front_door_first_and_without_a_tpu_have_no_chips() -> None:
    children = plan("--drain-timeout", "7").children()
    assert [child.name for child in children] == ["server", "verifier", "drafter"]
    assert plan().chips == {}
    assert children[1].command[:3] == (sys.executable, "-m", "blockdraft_verifier")
    assert children[0].stop_seconds == 17.0


def test_several_servers_share_a_port_and_have_the_rest_for_themselves() -> None:
    children = plan("--servers", "3", "--metrics-port", "9100", "--target", "t").children()
    names = ["server", "server-2", "server-3", "verifier", "drafter"]
    assert [child.name for child in children] == names
    assert [child.role for child in children] == ["server"] * 3 + ["verifier", "drafter"]
    own = [
        {
            f"--control=unix:/run/bd/{child.name}.sock",
            f"--metrics-port={9100 + offset}",
        }
        for child, offset in zip(children[:3], (0, 3, 4), strict=True)
    ]
    for child, differing in zip(children, own, strict=False):
        assert child.command[2] == "blockdraft_server"
        assert child.health_address == f"unix:/run/bd/{child.name}.sock"
        assert set(child.command[3:]) - differing == {
            "--target=t",
            "--servers=3",
            "--model-name=t",
            "--verifier=unix:/run/bd/verifier.sock",
        }


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--servers", "0"), "--servers must be at least 1"),
        (("--servers", "2", "--listen", "unix:/tmp/s"), "--servers 2 needs --listen host:port"),
        (("--servers", "2", "--listen", "127.0.0.1:0"), "--servers 2 needs a port in --listen"),
        # The processes take this port and the next ones: there is none before the first.
        (("--metrics-port", "0"), "--metrics-port must be at least 1, got 0"),
        (("--tls-cert", "c"), "--tls-key"),
        (("--production",), "--production needs --api-key-file"),
        (("--production", "--api-key-file", "k"), "--production needs --tls-cert and --tls-key"),
        (("--no-server",), "--no-server needs --peer-listen"),
        (("--no-server", "--peer-listen", "0.0.0.0:1", "--openai", "a:1"), "exclude each other"),
        (
            ("--peer-tls-cert", "c", "--peer-tls-key", "k", "--peer-tls-ca", "a"),
            "--peer-tls-cert needs --peer-listen",
        ),
        (("--drafter-placement", "nearby"), "--drafter-placement: must be auto, process, hosted"),
        (("--drafter-placement", "far:1", "--drafter", "d"), "settings of the drafter at far:1"),
        (("--drafter-placement", "far:1", "--learn"), "settings of the drafter at far:1"),
        (("--tls-elsewhere", "--tls-cert", "c", "--tls-key", "k"), "exclude each other"),
        (("--drafter", "d", "--no-drafter"), "--drafter and --no-drafter exclude each other"),
        (("--tpu-split", "2+2"), "--tpu-split needs a TPU: name it with --tpu-host"),
    ],
)
def test_bad_flags_are_found_before_anything_starts(flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(*flags)


def test_in_production_keys_and_tls_are_there_or_said_to_be_elsewhere() -> None:
    keys = ("--production", "--api-key-file", "k")
    for flags in (("--tls-elsewhere",), ("--tls-cert", "c", "--tls-key", "k")):
        [server, *_] = plan(*keys, *flags).children()
        assert {"--production", "--api-key-file=k"} <= set(server.command)
    control = ProcessSettings("127.0.0.1:1", control_address="127.0.0.1:2")
    with pytest.raises(ValueError, match="--production needs a unix socket for --control"):
        ServerSettings(production=True, tls_elsewhere=True, api_key_file=Path("k"), process=control)


def test_a_folder_too_deep_for_a_socket_is_refused() -> None:
    with pytest.raises(ValueError, match="too long"):
        plan(folder=Path("/" + "x" * 100))


@pytest.mark.parametrize(
    ("flags", "verifier", "drafter"),
    [
        (("--drafter-placement", "process"), "0,1", "2,3"),
        (("--tpu-split", "2+1"), "0,1", "2"),
        (("--tpu-split", "1+2"), "0", "2,3"),
        (("--drafter-placement", "process", "--tpu-host", "v6e-8"), "0,1,2,3", "4,5,6,7"),
        (("--tpu-split", "4+0"), "0,1,2,3", None),
        (("--no-drafter",), "0,1,2,3", None),
        (("--no-drafter", "--tpu-split", "2+0"), "0,1", None),
    ],
)
def test_processes_of_a_tpu_host_own_their_chips(
    flags: tuple[str, ...], verifier: str, drafter: str | None
) -> None:
    result = plan(*flags, TPU_ACCELERATOR_TYPE="v5p-8", TPU_WORKER_HOSTNAMES="localhost")
    owned = {role: variables["TPU_VISIBLE_CHIPS"] for role, variables in result.chips.items()}
    expected = {"verifier": verifier} | ({} if drafter is None else {"drafter": drafter})
    assert owned == expected
    for child in result.children():
        assert child.environment is not None
        assert child.environment.get("TPU_VISIBLE_CHIPS") == owned.get(child.name)
    assert result.verifier.slice is None
    assert (result.verifier.drafter_address is None) == (drafter is None)


@pytest.mark.parametrize(
    ("host", "flags"),
    [
        ("v5e-1", ()),
        ("v6e-8", ()),
        ("v5p-8", ("--drafter-placement", "hosted", "--drafter", "d")),
        (None, ("--drafter-placement", "hosted")),
    ],
)
def test_a_hosted_drafter_shares_process_and_chips(
    host: str | None, flags: tuple[str, ...]
) -> None:
    environ: dict[str, Any] = {"TPU_ACCELERATOR_TYPE": host} if host else {}
    result = plan(*flags, "--metrics-port", "9100", **environ)
    _, verifier = result.children()
    assert verifier.name == verifier.role == "verifier"
    assert verifier.command[1:3] == ("-m", "blockdraft_hosted")
    settings = HOSTED.resolve(parse(HOSTED, *verifier.command[3:]), {})
    assert settings.verifier == result.verifier
    assert settings.verifier.process.metrics_port == 9101
    assert settings.drafter.drafter == ("d" if "d" in flags else "auto")
    assert result.verifier.drafter_address is None
    chips = {"v5e-1": "0", "v6e-8": "0,1,2,3,4,5,6,7", "v5p-8": "0,1,2,3", None: None}[host]
    assert verifier.environment is not None
    assert verifier.environment.get("TPU_VISIBLE_CHIPS") == chips


@pytest.mark.parametrize("flags", [(), ("--no-server", "--peer-listen", "0.0.0.0:50052")])
def test_a_drafter_elsewhere_leaves_all_chips_to_the_verifier(flags: tuple[str, ...]) -> None:
    tls = ("--peer-tls-cert=c", "--peer-tls-key=k", "--peer-tls-ca=a")
    result = plan(*flags, *tls, "--drafter-placement=far:50061", TPU_ACCELERATOR_TYPE="v6e-8")
    *servers, verifier = result.children()
    assert [child.name for child in servers] == ([] if flags else ["server"])
    assert verifier.command[1:3] == ("-m", "blockdraft_verifier")
    assert {"--drafter=far:50061", *tls} <= set(verifier.command)
    assert verifier.environment is not None
    assert verifier.environment["TPU_VISIBLE_CHIPS"] == "0,1,2,3,4,5,6,7"
    assert plan("--drafter-placement=far:1", "--no-drafter").verifier.drafter_address is None


def test_every_host_of_a_slice_knows_the_drafter_elsewhere() -> None:
    for worker_id in ("0", "1"):
        result = plan(
            "--drafter-placement=far:50061",
            TPU_ACCELERATOR_TYPE="v5p-16",
            TPU_WORKER_HOSTNAMES="a,b",
            TPU_WORKER_ID=worker_id,
        )
        assert result.verifier.drafter_address == "far:50061"
        assert [child.name for child in result.children()][-1] == "verifier"


def test_learning_from_a_hosted_drafter_has_a_trainer() -> None:
    names = [child.name for child in plan("--learn", "--drafter-placement=hosted").children()]
    assert names == ["server", "verifier", "trainer"]


@pytest.mark.parametrize(
    ("flags", "whole"), [(("--drafter-placement=process",), False), (("--no-drafter",), True)]
)
def test_a_part_of_a_host_is_told_nothing_of_the_whole(
    flags: tuple[str, ...], *, whole: bool
) -> None:
    of_hosts: dict[str, Any] = {
        **{"TPU_HOST_BOUNDS": "1,1,1", "TPU_CHIPS_PER_HOST_BOUNDS": "2,4,1"},
        **{"TPU_TOPOLOGY": "2x4", "TPU_TOPOLOGY_WRAP": "false,false,false"},
    }
    result = plan(*flags, TPU_ACCELERATOR_TYPE="v6e-8", TPU_WORKER_ID="0", **of_hosts)
    for child in result.children():
        assert child.environment is not None
        assert child.environment["TPU_WORKER_ID"] == "0"
        assert (of_hosts.items() <= child.environment.items()) == whole
        assert whole or not of_hosts.keys() & child.environment.keys()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--tpu-split", "3+1"), r"cannot be split 3\+1: .* Fits: 4\+0, 2\+2"),
        (("--tpu-split", "2+2", "--no-drafter"), "exclude each other"),
        (("--tpu-split", "4+0", "--drafter", "d"), "leaves no chips for --drafter d"),
        (("--tpu-split", "2+2", "--drafter-placement", "hosted"), "exclude each other"),
        (("--tpu-split", "4+0", "--drafter-placement", "far:1"), "far:1 and .* exclude each other"),
        (("--tpu-host", "v5e-1", "--drafter-placement", "process"), "cannot both own its only"),
        (("--draft-groups", "2"), "a device of its own"),
    ],
)
def test_chips_that_cannot_be_split_are_refused(flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(*flags, TPU_ACCELERATOR_TYPE="v5p-8")


@pytest.mark.parametrize("worker_id", [0, 3])
def test_every_host_of_a_slice_runs_a_process_of_the_verifier(worker_id: int) -> None:
    result = plan(
        *("--no-drafter", "--peer-listen=0.0.0.0:50052"),
        TPU_ACCELERATOR_TYPE="v5litepod-16",
        TPU_WORKER_HOSTNAMES="a,b,c,d",
        TPU_WORKER_ID=str(worker_id),
    )
    names = [child.name for child in result.children()]
    assert names == (["server", "verifier"] if worker_id == 0 else ["verifier"])
    assert result.verifier.slice == SliceSettings("a:8482", 4, worker_id)
    assert result.verifier.peer_address == (None if worker_id else "0.0.0.0:50052")
    assert result.chips["verifier"]["CLOUD_TPU_TASK_ID"] == str(worker_id)


def test_a_control_address_may_be_named() -> None:
    result = plan("--control", "127.0.0.1:8000", "--servers", "2", "--listen", "0.0.0.0:50051")
    addresses = [child.health_address for child in result.children() if child.role == "server"]
    assert addresses == ["127.0.0.1:8000", f"unix:{FOLDER}/server-2.sock"]


ROLE = """
import os, signal, sys
import grpc
from concurrent.futures import ThreadPoolExecutor
from grpc_health.v1 import health, health_pb2_grpc

# In every thread that there will be, so that only the wait below takes it.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
server = grpc.server(ThreadPoolExecutor(2))
health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
name = "--control=" if role == "server" else "--listen="
[address] = [flag.removeprefix(name) for flag in sys.argv if flag.startswith(name)]
server.add_insecure_port(address)
server.start()
signal.sigwait({signal.SIGTERM})
print(role, "stops", file=sys.stderr, flush=True)
server.stop(None)
"""


@pytest.mark.usefixtures("hang_ups")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), (signal.SIGHUP, 0), (signal.SIGINT, 130)]
)
async def test_serve_announces_itself_and_drains_in_order(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    # Stand in for the processes, which need models.
    for role in ("server", "verifier", "drafter"):
        (tmp_path / f"blockdraft_{role}.py").write_text(f"role = {role!r}\n{ROLE}")
    program = (
        "import os, sys\n"
        "from blockdraft_client.cli.main import main\n"
        f"os.environ['PYTHONPATH'] = {str(tmp_path)!r}\n"
        "flags = ['--log-level', 'error', '--listen', 'localhost:0', '--drafter', 'random']\n"
        "sys.exit(main(['serve', *flags]))\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program), stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    line = await asyncio.wait_for(process.stderr.readline(), PATIENCE_SECONDS)
    assert line.startswith(b"blockdraft serves smollm2-135m on localhost:0, ready after")
    line = await asyncio.wait_for(process.stderr.readline(), PATIENCE_SECONDS)
    assert line == b"  verifier   unknown (UNIMPLEMENTED)\n"
    process.send_signal(number)
    rest = await asyncio.wait_for(process.stderr.read(), PATIENCE_SECONDS)
    assert rest.split(b"\n") == [b"server stops", b"verifier stops", b"drafter stops", b""]
    assert await process.wait() == code
