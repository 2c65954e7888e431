"""What holds for every test, and for the processes that tests start.

* JAX computes on the CPU, and slips of dtypes and of broadcasting are errors.
* XLA compiles quickly rather than well: most programs run here for milliseconds, once, and
  compiling them is most of the suite's time. XLA_FLAGS of the environment take precedence:
  `make test-slow` asks for what XLA does by itself where programs run for minutes.
* What serves or measures does so in float32 where no test says otherwise, with a C++ compiler or
  without one. Settings that are made in Python say it themselves.
* Services draft nothing from recent completions: much is completed plainly first, and drafts would
  be so good that streams end before anything happens to them.
* Properties may take any time for an example: how long says more of the machine than of them.
* Interrupts arrive, also where a shell started the run in the background and ignores them.
* Executables are kept in .cache/jax-tests between runs. Within a run, programs of the verifier and
  the drafters are compiled once; see `tests.compiled_once`.
"""

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.compiled_once import SharedPrograms

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ |= {
    f"BLOCKDRAFT_{command}_DTYPE": "float32"
    for command in (
        *("SERVE", "VERIFIER", "DRAFTER"),
        *("BENCH_DECODE", "BENCH_KFLAT", "BENCH_PEERS", "BENCH_SERVE"),
    )
}
os.environ["BLOCKDRAFT_SERVE_RECENT_COMPLETIONS"] = "0"
# Processes that tests start inherit all. Of a flag that is given twice, the last one counts.
os.environ["XLA_FLAGS"] = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false "
    # In one piece: the cores are busy with other tests.
    "--xla_cpu_parallel_codegen_split_count=1 " + os.environ.get("XLA_FLAGS", "")
)

import hypothesis
import jax
import pytest

pytest_plugins = ["tests.shapes", "tests.arithmetic"]

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile(
    "any-machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any-machine")

# Silent float64 or broadcasting slips are the commonest numeric bugs: make them errors.
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

CACHE = Path(__file__).parent.parent / ".cache" / "jax-tests"
jax.config.update("jax_compilation_cache_dir", str(CACHE))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


@pytest.fixture(autouse=True, scope="session")
def _shared_programs() -> Iterator["SharedPrograms"]:
    from tests.compiled_once import shared_programs

    with shared_programs() as shared:
        yield shared


@pytest.fixture(autouse=True, scope="module")
def _few_programs(_shared_programs: "SharedPrograms") -> Iterator[None]:
    yield
    _shared_programs.forget_if_many()


@pytest.fixture
def hang_ups() -> Iterator[None]:
    """Have hang-ups noticed by this process and its children, also where tests run by `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def unused_tcp_port() -> int:
    """Return a port that nobody is given who asks for any, as the plugin's own may be."""
    from tests.ports import free_ports

    return free_ports(1)


@pytest.fixture
def jax_as_it_was() -> Iterator[None]:
    """Leave jax as it was."""
    # What a command changes of it.
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture
def jax_keeps_nothing() -> Iterator[None]:
    """Let JAX keep no executables, nor find any."""
    from tests.compiled_once import jax_keeps_nothing

    with jax_keeps_nothing():
        yield


@pytest.fixture
def one_core() -> Iterator[None]:
    """Pin this thread, and what it starts, to one of the cores there are."""
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(usable)})
    yield
    os.sched_setaffinity(0, usable)


@pytest.fixture
def own_programs(_shared_programs: "SharedPrograms") -> Iterator[None]:
    """Compile anew what this test uses, because it replaces a part of the programs."""
    from tests.compiled_once import own_programs

    with own_programs():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no garbage among what importing makes, now nor later: all of it stays.

    And seldom for other garbage: tracing makes many objects that stay for a while.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000)
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, so that no worker waits for them alone.

    These are the ones with tests that may take long, and then those of the verifier.
    """
    allowed: dict[Path, float] = {}
    for item in items:
        marker = item.get_closest_marker("timeout")
        seconds = float(marker.args[0]) if marker is not None else 0.0
        allowed[item.path] = max(seconds, allowed.get(item.path, 0.0))
    items.sort(key=lambda item: (-allowed[item.path], "verifier" not in item.path.parts))
