"""What `blockdraft bench kflat` is told."""

from dataclasses import dataclass

from blockdraft_bench.common.settings import OutputSettings
from blockdraft_runtime.configuration.definition import check, group, setting
from blockdraft_runtime.settings.process import DEFAULT_TARGET, Dtype

TARGET_SHAPE = "target"


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """Which steps are timed and modelled, and which count as free; part of the report."""

    max_tokens: int = setting(
        1024, "most tokens of a step, K; steps have 1, 2, 4, ... tokens up to it", minimum=2
    )
    context_tokens: tuple[int, ...] = setting(
        (128, 1024),
        "one or more numbers of tokens that each sequence has in the cache",
        minimum=0,
        distinct=True,
    )
    batch: tuple[int, ...] = setting(
        (1, 4),
        "one or more numbers of sequences, powers of two; the tokens of a step are split evenly",
        minimum=1,
        distinct=True,
    )
    runs: int = setting(
        7,
        "timed runs of each step, in rounds over all; 0: nothing is timed, only modelled",
        minimum=0,
    )
    tolerance: float = setting(
        0.1, "how much longer than the smallest a step may take and still count as free", minimum=0
    )
    dtype: Dtype = setting(
        "auto",
        "element type of weights and cache; `auto` as when serving, which is bfloat16 on TPUs, "
        "modelled ones too",
    )
    topology: tuple[str, ...] = setting(
        (),
        "one or more TPU topologies to model, all chips of each, such as "
        "`v5p:2x2x1 v5e:2x2 v6e:2x2`; needs `blockdraft[tpu]` for libtpu",
        metavar="TPU",
        distinct=True,
    )
    model_shape: tuple[str, ...] = setting(
        (TARGET_SHAPE,),
        "one or more models to model on them: `target`, or a shape that --target of "
        "`blockdraft compile` knows",
        metavar="SHAPE",
        distinct=True,
    )

    def __post_init__(self) -> None:
        """Check the ranges, and that there is anything to do."""
        check(self)
        for batch in self.batch:
            if batch > self.max_tokens or batch & (batch - 1):
                raise ValueError(
                    "--batch must be powers of two up to --max-tokens "
                    f"({self.max_tokens}), got {batch}"
                )
        if not self.runs and not self.topology:
            raise ValueError("--runs 0 measures nothing; say --topology to model a TPU")


@dataclass(frozen=True, slots=True)
class KFlatSettings:
    """Everything `blockdraft bench kflat` is told."""

    target: str = setting(
        DEFAULT_TARGET,
        "target model: a known name, a directory, a `.gguf` file or a hub id",
        metavar="SPEC",
    )
    steps: StepSettings = group(StepSettings)
    result: OutputSettings = group(OutputSettings)
