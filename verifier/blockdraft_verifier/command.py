"""`blockdraft verifier`: the target model alone."""

import argparse
import dataclasses
import logging
import os
from typing import TYPE_CHECKING

from blockdraft_runtime.configuration.command import Configuration
from blockdraft_runtime.logs import configure_logging
from blockdraft_runtime.settings.verifier import SliceSettings, VerifierSettings
from blockdraft_runtime.tpu import TpuHost

if TYPE_CHECKING:
    from collections.abc import Callable

    from blockdraft_models.kept_programs import KeptPrograms
    from blockdraft_verifier.drafting.hosted import HostedDrafter

CONFIGURATION = Configuration("verifier", VerifierSettings)

logger = logging.getLogger(__name__)

# Steps of a decoding row hold as many tokens as the published block drafters'.
SELF_TEST_BLOCK_TOKENS = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `blockdraft verifier`."""
    CONFIGURATION.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the verifier until SIGTERM or SIGINT; return the exit code."""
    return run_verifier(CONFIGURATION.read(args))


def run_verifier(
    settings: VerifierSettings, make_drafter: "Callable[[], HostedDrafter] | None" = None
) -> int:
    """Run a verifier, on one host perhaps with a drafter in this process; return the exit code."""
    configure_logging("verifier", settings.process.log_level, settings.process.log_format)
    try:
        if settings.slice is None:
            host = TpuHost.from_environment(os.environ)
            settings = dataclasses.replace(settings, slice=SliceSettings.of(host))
    except ValueError as error:
        logger.error("%s", error)
        return 2
    # Imported here: `blockdraft --help` must not wait for jax.
    import asyncio

    import uvloop

    from blockdraft_models.executables import (
        keep_executables,
        keep_programs,
        prepare_libtpu,
        require_devices,
    )
    from blockdraft_runtime.credentials import peer_server_credentials
    from blockdraft_runtime.process import serve
    from blockdraft_verifier.app import FollowerApp, VerifierApp

    kept_programs = None
    if settings.slice is None and settings.engine.implementation != "torch":
        kept_programs = keep_programs("blockdraft_verifier", settings.compilation_cache)
    else:
        # All processes of a slice must find the same programs, and the configuration of a module
        # of transformers does not say all that it computes.
        keep_executables(settings.compilation_cache)

    async def main() -> bool:
        stop_requested = asyncio.Event()
        app: VerifierApp | FollowerApp
        if settings.slice is None or settings.slice.leads:
            drafter = None if make_drafter is None else make_drafter()
            app = VerifierApp(
                settings, stop_requested, kept_programs=kept_programs, drafter=drafter
            )
        else:
            app = FollowerApp(settings, stop_requested)
        second = None
        if settings.peer_address is not None:
            credentials = peer_server_credentials(settings.peer_address, settings.peer_tls)
            second = settings.peer_address, credentials
        await serve(
            app,
            settings.process,
            credentials=peer_server_credentials(settings.process.address, settings.peer_tls),
            second=second,
            stop_requested=stop_requested,
        )
        app.loading.leave()
        return not app.failed

    try:
        if settings.slice is None:
            require_devices()
        else:
            # JAX has to meet the other hosts before it looks for devices.
            prepare_libtpu()
        if settings.self_test:
            return run_self_test(settings, kept_programs)
        failed = not uvloop.run(main())
    except (ValueError, RuntimeError, OSError) as error:
        logger.error("%s", error)
        # In a slice the fault may be another host's, which is started anew.
        return 2 if isinstance(error, ValueError) and settings.slice is None else 1
    if failed and settings.slice is not None:
        # JAX would wait for the processes that are gone, and then abort with pages of its own.
        logging.shutdown()
        os._exit(1)
    return 1 if failed else 0


def run_self_test(settings: VerifierSettings, kept_programs: "KeptPrograms | None" = None) -> int:
    """Load the target, compile its steps, compare them, and print the result.

    It reports the numerics classes before any step is padded to another, as it would be in service.
    The exit code is 0 if all steps are batch-invariant.
    """
    from blockdraft_verifier.device.feature_form import NO_FEATURES
    from blockdraft_verifier.loading import load_target, report_compiled
    from blockdraft_verifier.self_test import ON_REQUEST, self_test

    if settings.slice is not None:
        raise ValueError("--self-test is for one host; a slice makes its own when it starts")
    runner = load_target(settings, kept_programs=kept_programs).runner
    runner.compile(NO_FEATURES, SELF_TEST_BLOCK_TOKENS, report_compiled)
    exactness = self_test(runner, ON_REQUEST)
    print(exactness.summary())
    return 0 if exactness.exact else 1
