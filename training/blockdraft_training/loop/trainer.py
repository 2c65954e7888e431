"""All steps of a run, one after another, with readings, checkpoints and validation between."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from blockdraft_drafter.compiled.definition import DraftModel
from blockdraft_training.errors import DivergedError, TrainingError
from blockdraft_training.features.batches import BatchBuilder, batches
from blockdraft_training.features.frozen import Completion, Frozen
from blockdraft_training.loop.checkpoints import Checkpoints
from blockdraft_training.loop.held_out import make_validation
from blockdraft_training.loop.history import History, Reading
from blockdraft_training.loop.optimizer import cosine, make_optimizer
from blockdraft_training.loop.progress import Reporter
from blockdraft_training.loop.step import TrainState, initial_state, make_step
from blockdraft_training.loop.throughput import Throughput, matmul_peak
from blockdraft_training.methods.objective import BlockMetrics
from blockdraft_training.methods.recipe import AnyRecipe


class Trainer:
    """The compiled parts of a run and the loop over them.

    Attributes:
        frozen: What the steps read of the target, on all devices.
        validate: Measures acceptance on the held-out rows, given weights and `frozen`.
    """

    def __init__(
        self,
        recipe: AnyRecipe,
        model: DraftModel,
        builder: BatchBuilder,
        training: Sequence[int],
        held_out: Sequence[int],
        frozen: Frozen,
        complete: Completion,
        dtype: jnp.dtype,
    ) -> None:
        """Put everything onto the devices.

        Args:
            recipe: The method and its settings.
            model: The drafter before the first step.
            builder: Makes batches of row numbers.
            training: Rows to train on.
            held_out: Rows to measure acceptance on.
            frozen: What the steps read of the target.
            complete: Adds the features a batch lacks.
            dtype: Of activations.

        Raises:
            TrainingError: If a batch cannot be split over the devices.
        """
        settings = recipe.settings
        mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
        if settings.batch_size % mesh.size:
            raise TrainingError(
                f"batch_size {settings.batch_size} cannot be split over {mesh.size} devices"
            )
        self._settings, self._builder, self._training = settings, builder, training
        self._by_row = NamedSharding(mesh, PartitionSpec("data"))
        everywhere = NamedSharding(mesh, PartitionSpec())
        self.frozen: Frozen = jax.device_put(frozen, everywhere)
        optimizer = make_optimizer(settings, cosine(settings))
        self._step = make_step(recipe, model, optimizer, complete=complete, dtype=dtype)
        self._initial: TrainState = jax.device_put(initial_state(model, optimizer), everywhere)
        self._slots = model.config.block_size - 1
        self._peak = matmul_peak(dtype)
        self.validate = make_validation(
            recipe, model, builder, held_out, complete=complete, dtype=dtype
        )

    def run(self, checkpoints: Checkpoints, report: Reporter) -> tuple[TrainState, History]:
        """Make all steps that are not made yet.

        Raises:
            DivergedError: If the loss is no longer a number.
            TrainingError: If a checkpoint is damaged or cannot be written.
        """
        settings, state = self._settings, self._initial
        if checkpoints.latest is not None:
            state = checkpoints.restore(state)
        step = int(state.step)
        history = History(settings.output, step)
        stream = batches(
            self._builder,
            self._training,
            settings.batch_size,
            seed=settings.seed,
            steps=range(step, settings.steps),
            sharding=self._by_row,
        )
        flops = 0.0
        compiled: Any = None
        began = read = time.perf_counter()
        read_step = step
        for batch in stream:
            if compiled is None:
                compiled = self._step.lower(state, self.frozen, batch).compile()
                flops = float((compiled.cost_analysis() or {}).get("flops", 0.0))
                read = time.perf_counter()
            state = compiled(state, self.frozen, batch)
            step += 1
            saving = step == settings.steps or step % settings.checkpoint_every == 0
            if not (saving or step % settings.report_every == 0):
                continue
            metrics: BlockMetrics = jax.block_until_ready(state.metrics)
            now = time.perf_counter()
            speed = self._throughput(metrics, step - read_step, now - read, flops)
            reading = Reading.of(step, metrics, now - began, speed)
            if not math.isfinite(float(metrics.gradient_norm)) or not math.isfinite(reading.loss):
                raise DivergedError(
                    f"the loss is not a number at step {step}; {checkpoints.path()};"
                    " start again with a lower --learning-rate and another --output"
                )
            state = replace(state, metrics=BlockMetrics.zero(self._slots))
            if saving:
                checkpoints.save(state)
                reading = replace(reading, validation=self.validate(state.params, self.frozen))
            history.add(reading)
            report.reading(reading, settings.steps)
            read, read_step = time.perf_counter(), step
        return state, history

    def _throughput(
        self, metrics: BlockMetrics, steps: int, seconds: float, flops: float
    ) -> Throughput:
        tokens = steps * self._settings.batch_size * self._builder.length
        return Throughput(
            positions_per_second=float(metrics.seen.sum()) / seconds,
            tokens_per_second=tokens / seconds,
            flops_per_second=flops * steps / seconds,
            peak_share=flops * steps / seconds / self._peak,
        )
