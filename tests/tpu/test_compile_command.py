"""`blockdraft compile` from end to end, on a small checkpoint."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from flax import nnx
from tests.models.tiny import tiny_config, write_hf_checkpoint

from blockdraft_client.cli.main import main
from blockdraft_models.decoder.model import Decoder

pytest.importorskip("libtpu")
pytestmark = pytest.mark.tpu

LIMITS = (
    *("--max-sequences", "4", "--max-step-tokens", "64", "--max-model-len", "256"),
    *("--context-tokens", "128", "--block-size", "4", "--page-size", "16"),
    *("--prompt-lookup-block", "1"),
)
FEW = ("--max-sequences", "1", "--max-step-tokens", "16")
# Of so small a target a whole chip holds a million tokens, and XLA compiles the longer for each.
LITTLE_MEMORY = ("--memory-share", "0.01")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    config = tiny_config(
        hidden_size=256,
        intermediate_size=512,
        num_layers=8,
        num_heads=8,
        num_kv_heads=4,
        head_dim=64,
        vocab_size=512,
    )
    directory = tmp_path_factory.mktemp("target")
    write_hf_checkpoint(Decoder(config, rngs=nnx.Rngs(0)), directory)
    return str(directory)


@pytest.fixture
def survey(target: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    def survey(topology: str, drafter: str, *more: str) -> dict[str, Any]:
        """Return what the command reports, after checks of what holds for both roles."""
        arguments = ("--topology", topology, "--target", target, "--drafter", drafter, *LIMITS)
        always = (*arguments, *LITTLE_MEMORY, "--ends-only", "--json")
        assert main(["compile", *always, *more]) == 0
        report: dict[str, Any] = json.loads(capsys.readouterr().out)
        if drafter != "none":
            assert list(report["roles"]) == ["verifier", "drafter"]
            for name, role in report["roles"].items():
                assert role["chips"] == (2 if "--tpu-split" in more else 4)
                for program in role["programs"]:
                    assert program["collectives_per_layer"] <= (4 if name == "verifier" else 2)
                    assert program["modelled_seconds"] > 0
            kinds = {each["kind"] for each in report["roles"]["drafter"]["programs"]}
            assert kinds == {"append", "draft"}
            # Attention, norms and products of a layer; the last norm and the head.
            assert {each["kernels"] for each in report["roles"]["verifier"]["programs"]} == {12}
        return report

    return survey


def test_both_roles(survey: Callable[..., dict[str, Any]]) -> None:
    options = ("--tpu-split", "2+2", "--least-step-tokens", "1")
    verifier = survey("v5e:2x2", "dflash", *options)["roles"]["verifier"]
    kinds = [(each["kind"], each["rows"], each["tokens"]) for each in verifier["programs"]]
    assert kinds == [("verify", 1, 1), ("verify", 4, 16), ("prefill", 1, 8), ("prefill", 4, 64)]
    # Sixteen times the tokens: more operations, but the weights are read once.
    small, large = verifier["programs"][0], verifier["programs"][1]
    assert large["flops"] > 5 * small["flops"]
    assert large["bytes"] < 5 * small["bytes"]
    pages, memory = verifier["pages"], verifier["memory_bytes"]
    left = memory.pop("usable") - sum(memory.values())
    # Pages of 16 tokens, two of the four key heads a chip, padded to 128 wide, in bfloat16.
    assert pages == left // (8 * 16 * 2 * 2 * 128 * 2)
    assert verifier["sequences_by_context_tokens"]["256"] == pages // 16


def test_the_other_method(survey: Callable[..., dict[str, Any]]) -> None:
    survey("v5e:2x2", "eagle3", "--tpu-split", "2+2", *FEW)


def test_a_hosted_drafter_takes_memory_of_the_verifiers_chips(
    survey: Callable[..., dict[str, Any]],
) -> None:
    verifier, drafter = survey("v5e:2x2", "dflash", *FEW)["roles"].values()
    assert verifier["topology"] == drafter["topology"] == "v5e:2x2"
    own = drafter["memory_bytes"]
    del own["usable"]
    # The embedding, which is the target's, in bfloat16 on four chips.
    shared = 512 * 256 * 2 // 4
    assert verifier["memory_bytes"]["drafter"] == sum(own.values()) - shared


def test_rows_are_as_long_as_prompt_lookups_drafts(survey: Callable[..., dict[str, Any]]) -> None:
    # Up to the longest verification; what is longer is of a prompt.
    sizes = ("--prompt-lookup-block=8", "--least-step-tokens=1", "--max-step-tokens=16")
    report = survey("v5e:1x1", "none", *sizes, "--max-sequences=1")
    programs = report["roles"]["verifier"]["programs"]
    found = [(each["kind"], each["rows"], each["tokens"]) for each in programs]
    assert found == [("verify", 1, 1), ("verify", 1, 8), ("prefill", 1, 16)]


def test_int8_weights_take_a_byte_each(survey: Callable[..., dict[str, Any]]) -> None:
    report = survey("v5e:1x1", "none", *FEW, "--weights", "int8")
    assert report["weights"] == "int8"
    matrices = 8 * 256 * (512 + 256 + 256 + 512 + 3 * 512)
    scales = 8 * (512 + 256 + 256 + 256 + 512 + 512 + 256)
    embedding_and_norms = 512 * 256 + (2 * 8 + 1) * 256
    memory = report["roles"]["verifier"]["memory_bytes"]
    assert memory["weights"] == matrices + 4 * scales + 2 * embedding_and_norms


def test_what_does_not_fit_fails_and_names_the_largest(
    target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--topology", "v5e:1x1", "--target", "qwen3-32b", "--drafter", "none")
    assert main(["compile", *arguments]) == 1
    error = capsys.readouterr().err
    assert "the verifier does not fit: weights take 65.5" in error
    tiny_share = ("--memory-share", "0.0001", "--drafter", "none", *LIMITS)
    assert main(["compile", "--topology", "v5e:1x1", "--target", target, *tiny_share]) == 1
    assert "does not fit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--topology", "v5p:2x2x1", "--tpu-split", "3+1"), "cannot be split 3+1"),
        (("--topology", "v5p:nonsense"), "no slice is called"),
        (("--topology", "v5e:2x2", "--block-size", "1"), "--block-size must be at least 2"),
        (("--topology", "v5e:2x2", "--memory-share", "0"), "--memory-share must be"),
        (("--topology", "v5e:2x2", "--drafter", "nowhere"), "no directory, nor dflash, eagle3"),
        (("--topology", "v5e:2x2", "--context-tokens", "5000"), "--context-tokens must be"),
    ],
)
def test_wrong_usage(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", *arguments]) == 2
    assert message in capsys.readouterr().err
