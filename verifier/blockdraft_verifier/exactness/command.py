"""`blockdraft verifier --self-test`: say whether this device rounds alike, and end."""

from blockdraft_runtime.settings.verifier import VerifierSettings
from blockdraft_verifier.device.feature_form import NO_FEATURES
from blockdraft_verifier.exactness.self_test import ON_REQUEST, self_test
from blockdraft_verifier.loading import load_target, report_compiled

# Steps of a decoding row hold as many tokens as the published block drafters'.
BLOCK_TOKENS = 16


def run_self_test(settings: VerifierSettings) -> int:
    """Load the target, compile its steps, compare them, and print what was found.

    It says how steps round before any of them is padded to another, as it would be in service.

    Returns:
        0 if every step rounds alike, otherwise 1.

    Raises:
        ValueError: If the target cannot be loaded, or the settings are those of a slice, which
            makes its self-test when it starts.
    """
    if settings.slice is not None:
        raise ValueError("--self-test is for one host; a slice makes its own when it starts")
    runner = load_target(settings).runner
    runner.compile(NO_FEATURES, BLOCK_TOKENS, report_compiled)
    found = self_test(runner, ON_REQUEST)
    print(found.summary())
    return 0 if found.exact else 1
