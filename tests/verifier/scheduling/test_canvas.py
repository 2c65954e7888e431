"""When a canvas takes tokens, becomes noise again, and is done: by arrays, as publishers do it."""

import numpy as np
import pytest

from blockdraft_models.diffusion import MaskDiffusion, NoiseDiffusion
from blockdraft_models.sampling_options import Sampling
from blockdraft_verifier.scheduling.canvas import CanvasChoices, MaskCanvas, NoiseCanvas

SAMPLING = Sampling(temperature=1.0, seed=5)


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_kept_and_ends_as_in_transformers(seed: int) -> None:
    """`accept_canvas` and `StableAndConfidentStoppingCriteria`, written with arrays."""
    rng = np.random.default_rng(seed)
    stable_steps = int(rng.integers(0, 3))
    diffusion = NoiseDiffusion(
        *(8, 50, 12), entropy_bound=1.0, stable_steps=stable_steps, least_entropy=0.5
    )
    canvas = NoiseCanvas.after([1, 2, 3], diffusion, SAMPLING)
    assert canvas.token_ids == NoiseCanvas.after([4, 5, 6], diffusion, SAMPLING).token_ids
    assert canvas.token_ids != NoiseCanvas.after([1, 2], diffusion, SAMPLING).token_ids
    history = [np.full(8, -1)] * stable_steps
    likeliest = rng.integers(0, 50, 8)
    for step in range(1, 13):
        before = canvas.token_ids
        if rng.random() < 0.3:
            likeliest = rng.integers(0, 50, 8)
        choices, entropies = rng.integers(50, 99, 8), rng.gamma(1, 0.4, 8)
        canvas.fill(CanvasChoices(choices.tolist(), entropies.tolist(), likeliest.tolist()))
        order = np.argsort(entropies)
        cumulative = np.cumsum(entropies[order])
        accepted = order[cumulative - entropies[order] <= 1.0]
        # Noise is of the vocabulary; choices are not, here.
        assert [place for place in range(8) if canvas.token_ids[place] >= 50] == sorted(accepted)
        assert [canvas.token_ids[place] for place in accepted] == choices[accepted].tolist()
        assert canvas.token_ids != before
        stable = all((earlier == likeliest).all() for earlier in history)
        history = [*history, likeliest][1:] if stable_steps else []
        done = bool(stable and entropies.mean() < 0.5) or step == 12
        assert canvas.done == done
        assert canvas.leading(3) == (tuple(likeliest.tolist()) if done else ())
        if done:
            break


def test_the_temperature_falls_as_in_transformers() -> None:
    diffusion = NoiseDiffusion(8, 50, 48)
    temperatures = [diffusion.temperature(step) for step in range(48)]
    expected = [0.4 + 0.4 * remaining / 48 for remaining in range(48, 0, -1)]
    np.testing.assert_allclose(temperatures, expected)


def test_greedy_canvases_have_the_same_noise_for_every_seed() -> None:
    diffusion = NoiseDiffusion(8, 50)
    canvases = [NoiseCanvas.after([1], diffusion, Sampling(seed=seed)) for seed in (1, 2)]
    assert canvases[0].token_ids == canvases[1].token_ids


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_masks_are_filled_part_after_part(seed: int, *, shifted: bool) -> None:
    rng = np.random.default_rng(seed)
    diffusion = MaskDiffusion(8, 4, 99, 0.7, shifted=shifted)
    tokens = list(range(int(rng.integers(9, 16))))
    canvas = MaskCanvas.after(tokens, diffusion)
    filled = np.arange(8) < len(tokens) - 8
    while not canvas.done:
        choices, shares = rng.integers(0, 50, 8), rng.random(8).astype(np.float32)
        of_place = np.roll(shares, 1) if shifted else shares
        tokens_of_place = np.roll(choices, 1) if shifted else choices
        part = np.arange(8) // 4 == (~filled).argmax() // 4
        candidates = np.where(part & ~filled, of_place, -np.inf)
        taken = (candidates > 0.7) | (np.arange(8) == candidates.argmax())
        canvas.fill(CanvasChoices(choices.tolist(), shares.tolist()))
        filled |= taken
        assert [token != 99 for token in canvas.token_ids] == filled.tolist()
        for place in np.flatnonzero(taken):
            assert canvas.token_ids[place] == tokens_of_place[place]
