"""Series made by a formula, seen at irregular times under noise, with the truth beside every value."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from ctsattn.datasets.card import Dataset
from ctsattn.datasets.splits import SeriesSplit, Split, TimeSplit
from ctsattn.datasets.tables import categories

Path = Callable[[np.ndarray], np.ndarray]
"""The noiseless values `[times, variables]` of one series at any times within its span."""

Rate = Callable[[float, np.ndarray], list[float]]
"""Right-hand side of a differential equation: time and state to the speed of change."""

_FINE = 20_000  # steps of the grid on which random paths are drawn


@dataclass(frozen=True)
class Family:
    """A kind of series: how to draw one, and how it is usually observed.

    Attributes:
        draw: Draws the path of one series on `[0, span]`.
        variables: Names of what is observed; one name stands for a series without the column `variable`.
        span: Time that a series lasts.
        observations: Times at which a series is looked at.
        keep: Share of the (time, variable) cells that are seen.
        noise: Standard deviation of the noise, as a share of the deviation of the path.
    """

    draw: Callable[[np.random.Generator, float], Path]
    variables: tuple[str, ...] = ("y",)
    span: float = 100.0
    observations: int = 200
    keep: float = 1.0
    noise: float = 0.05


def path(name: str, number: int = 0, *, seed: int = 0, span: float | None = None) -> Path:
    """The true path of a series of a family, to be asked at any times.

    It is the path behind series `number` of `generate(name, seed=seed)`.
    """
    family = FAMILIES[name]
    return family.draw(np.random.default_rng([seed, number, 0]), span or family.span)


def generate(
    name: str,
    *,
    series: int = 50,
    observations: int | None = None,
    span: float | None = None,
    noise: float | None = None,
    keep: float | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Make series of a family, each observed at random times drawn evenly from its span.

    Args:
        name: A key of `FAMILIES`.
        series: How many.
        observations: Times for each series.
        span: Time that each lasts.
        noise: Deviation of the noise as a share of the deviation of the observed path.
        keep: Share of (time, variable) cells that are seen.
        seed: The same seed gives the same frame; series `i` does not depend on how many are made.

    Returns:
        Long frame with `unique_id`, `variable` where there are several, `ds` (float), `y`, and `truth`,
        the value without noise.
    """
    family = FAMILIES[name]
    span, count = span or family.span, observations or family.observations
    noise = family.noise if noise is None else noise
    keep = family.keep if keep is None else keep
    parts = []
    for number in range(series):
        rng = np.random.default_rng([seed, number, 1])
        times = np.sort(rng.uniform(0.0, span, count))
        truth = path(name, number, seed=seed, span=span)(times)
        seen = rng.uniform(size=truth.shape) < keep
        values = truth + noise * truth.std(0) * rng.standard_normal(truth.shape)
        variable, row = np.nonzero(seen.T)
        parts.append(
            (np.full(len(row), number), variable, times[row], values[row, variable], truth[row, variable])
        )
    number, variable, ds, y, truth = (np.concatenate(column) for column in zip(*parts, strict=True))
    frame = pd.DataFrame({"unique_id": categories(number, range(series)), "ds": ds, "y": y, "truth": truth})
    if len(family.variables) > 1:
        frame.insert(1, "variable", categories(variable, family.variables))
    return frame


def ou_law(
    value: np.ndarray, gap: np.ndarray, rate: float, deviation: float
) -> tuple[np.ndarray, np.ndarray]:
    r"""Law of an Ornstein-Uhlenbeck process some time after a value was seen: mean and deviation.

    $x(t + \Delta) \mid x(t) \sim N(x e^{-\theta\Delta}, s^2 (1 - e^{-2\theta\Delta}))$, with
    stationary deviation $s$.

    Args:
        value: What was seen.
        gap: Time since, not negative.
        rate: $\theta$.
        deviation: $s$.
    """
    decay = np.exp(-rate * np.asarray(gap))
    return np.asarray(value) * decay, deviation * np.sqrt(-np.expm1(-2.0 * rate * np.asarray(gap)))


def _sines(rng: np.random.Generator, span: float) -> Path:
    """Three sines whose periods have no common multiple, and a straight drift."""
    periods = np.array([1.0, np.sqrt(2.0), np.sqrt(11.0)]) * rng.uniform(6.0, 12.0)
    heights, phases = rng.uniform(0.3, 1.0, 3), rng.uniform(0.0, 2 * np.pi, 3)
    level, drift = rng.normal(), rng.normal() / span

    def at(times: np.ndarray) -> np.ndarray:
        waves = heights * np.sin(2 * np.pi * times[:, None] / periods + phases)
        return (level + drift * times + waves.sum(1))[:, None]

    return at


def _ornstein_uhlenbeck(rng: np.random.Generator, span: float) -> Path:
    """Ornstein-Uhlenbeck process: its law is exact on a fine grid, and between it the path is straight."""
    grid = np.linspace(0.0, span, _FINE + 1)
    decay, spread = ou_law(np.ones(1), np.full(1, grid[1]), OU_RATE, OU_DEVIATION)
    shocks = rng.standard_normal(_FINE + 1)
    values = np.empty(_FINE + 1)
    values[0] = OU_DEVIATION * shocks[0]
    for i in range(_FINE):
        values[i + 1] = decay[0] * values[i] + spread[0] * shocks[i + 1]
    return lambda times: np.interp(times, grid, values)[:, None]


def _damped(rng: np.random.Generator, span: float) -> Path:
    """Place and speed of an oscillator that friction brings to rest."""
    frequency, friction = 2 * np.pi / rng.uniform(5.0, 15.0), rng.uniform(1.0, 3.0) / span
    height, phase = rng.uniform(0.5, 2.0), rng.uniform(0.0, 2 * np.pi)

    def at(times: np.ndarray) -> np.ndarray:
        envelope, angle = height * np.exp(-friction * times), frequency * times + phase
        place = envelope * np.cos(angle)
        speed = -friction * place - frequency * envelope * np.sin(angle)
        return np.stack([place, speed], 1)

    return at


def _solve(rate: Rate, start: np.ndarray, span: float) -> Path:
    """Path of a differential equation, to nine digits a step, to be asked anywhere on `[0, span]`."""
    from scipy.integrate import solve_ivp

    solution = solve_ivp(rate, (0.0, span), start, method="DOP853", rtol=1e-9, atol=1e-9, dense_output=True)
    return lambda times: solution.sol(times).T


def _lorenz(rng: np.random.Generator, span: float) -> Path:
    """Lorenz's system of 1963 with its usual parameters, begun on the attractor."""

    def rate(_: float, state: np.ndarray) -> list[float]:
        x, y, z = state.tolist()
        return [10.0 * (y - x), x * (28.0 - z) - y, x * y - 8.0 / 3.0 * z]

    start = rng.normal([0.0, 0.0, 25.0], [8.0, 8.0, 6.0])
    settled = _solve(rate, start, 5.0)(np.array([5.0]))[0]
    return _solve(rate, settled, span)


def _goodwin(rng: np.random.Generator) -> tuple[Rate, np.ndarray]:
    """Goodwin's oscillator: a gene whose product represses it by way of a third substance."""
    steep = rng.uniform(9.0, 12.0)
    made, lost = rng.uniform(0.8, 1.2, 3).tolist(), rng.uniform(0.08, 0.12, 3).tolist()

    def rate(_: float, state: np.ndarray) -> list[float]:
        messenger, protein, repressor = state.tolist()
        sources = (1.0 / (1.0 + max(repressor, 0.0) ** steep), messenger, protein)
        levels = (messenger, protein, repressor)
        return [
            m * source - x * level for m, source, x, level in zip(made, sources, lost, levels, strict=True)
        ]

    return rate, rng.uniform(0.1, 1.0, 3)


def _hindmarsh_rose(rng: np.random.Generator) -> tuple[Rate, np.ndarray]:
    """Hindmarsh and Rose's neuron: bursts of spikes, switched by a slow current."""
    current, slow = rng.uniform(2.0, 3.4), rng.uniform(0.01, 0.03)

    def rate(_: float, state: np.ndarray) -> list[float]:
        voltage, recovery, adaptation = state.tolist()
        return [
            recovery - voltage**3 + 3.0 * voltage**2 - adaptation + current,
            1.0 - 5.0 * voltage**2 - recovery,
            slow * (4.0 * (voltage + 1.6) - adaptation),
        ]

    return rate, rng.normal([-1.0, -3.0, 2.5], 0.3)


def _epidemic(rng: np.random.Generator) -> tuple[Rate, np.ndarray]:
    """Susceptible, infected and immune, where immunity is lost again and contacts have a season."""
    contact, recovery, loss = rng.uniform(0.4, 0.8), rng.uniform(0.1, 0.2), rng.uniform(0.01, 0.05)
    season, phase = 2 * np.pi / rng.uniform(30.0, 60.0), rng.uniform(0.0, 2 * np.pi)

    def rate(time: float, state: np.ndarray) -> list[float]:
        susceptible, infected, immune = state.tolist()
        caught = contact * (1.0 + 0.3 * math.sin(season * time + phase)) * susceptible * infected
        return [loss * immune - caught, caught - recovery * infected, recovery * infected - loss * immune]

    infected = rng.uniform(0.01, 0.1)
    return rate, np.array([1.0 - infected, infected, 0.0])


_MODELS = (_goodwin, _hindmarsh_rose, _epidemic)


def _physiome(rng: np.random.Generator, span: float, model: int = 0) -> Path:
    """A small biological system with drawn parameters and start."""
    rate, start = _MODELS[model](rng)
    return _solve(rate, start, span)


OU_RATE, OU_DEVIATION = 0.1, 1.0
_STATES = ("a", "b", "c")

FAMILIES: dict[str, Family] = {
    "sines": Family(_sines),
    "ornstein_uhlenbeck": Family(_ornstein_uhlenbeck, noise=0.0),
    "damped_oscillators": Family(_damped, variables=("place", "speed"), keep=0.5),
    "lorenz63": Family(_lorenz, variables=("x", "y", "z"), span=10.0),
    "physiome_goodwin": Family(_physiome, _STATES, 200.0, keep=0.2),
    "physiome_neuron": Family(partial(_physiome, model=1), _STATES, 150.0, keep=0.2),
    "physiome_epidemic": Family(partial(_physiome, model=2), _STATES, 200.0, keep=0.2),
}

_TITLES = {
    "sines": "Sums of three incommensurate sines with a drift",
    "ornstein_uhlenbeck": "Ornstein-Uhlenbeck processes, whose best forecast is known",
    "damped_oscillators": "Place and speed of damped oscillators",
    "lorenz63": "Lorenz's chaotic system of 1963",
    "physiome_goodwin": "A gene repressed by its own product (Goodwin)",
    "physiome_neuron": "A bursting neuron (Hindmarsh and Rose)",
    "physiome_epidemic": "A seasonal epidemic with loss of immunity",
}
_PHYSIOME = 'the form follows Klötergens et al., "Physiome-ODE", ICLR (2025)'


def _card(name: str, family: Family) -> Dataset:
    """The card of a family."""
    physiome = name.startswith("physiome")
    split: Split = SeriesSplit() if physiome else TimeSplit()
    return Dataset(
        name=name,
        title=_TITLES[name],
        origin="Made by ctsattn.datasets.synthetic; no file is read.",
        license="Apache-2.0",
        citation=_PHYSIOME if physiome else "none",
        sampling=f"irregular: {family.observations} random times in {family.span:g}, {family.keep:.0%} "
        "of the cells",
        regular=False,
        split=split,
        horizons=(family.span / 2,) if physiome else (family.span / 5,),
        metric="MSE against the values without noise, beside that of the truth itself",
        read=partial(generate, name),
        rows=None,
        series=50,
        variables=family.variables if len(family.variables) > 1 else (),
        notes="Options of load: series, observations, span, noise, keep, seed. The column `truth` has no "
        "noise.",
    )


CARDS = {name: _card(name, family) for name, family in FAMILIES.items()}
