"""What is measured on one model, each thing once and only when a claim asks for it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float

from eigenlens.claims.suites import Subject
from eigenlens.dynamics.live_run import simulate_model
from eigenlens.dynamics.result import Simulation
from eigenlens.errors import OptionError
from eigenlens.live.session import Session, open_session
from eigenlens.live.verify import TOLERANCES, VerifyRow, verify
from eigenlens.measure.alignment import alignment
from eigenlens.spectra.analyse import spectrum
from eigenlens.spectra.result import LayerSpectrum, Spectrum
from eigenlens.steering.result import Steering
from eigenlens.steering.steer import steer
from eigenlens.tracing.result import Trace
from eigenlens.tracing.run import trace

Step = Callable[[str], None]
"""Told what is measured now."""

CONSENSUS_TOKENS = 24
STEERED = 0.99
"""Mean cosine with the wanted direction that steering is asked for."""


@dataclass(frozen=True)
class Settings:
    """How much is measured.

    Attributes
    ----------
    starts
        Starts of a simulation; random tokens through the model's embeddings.
    steps
        Layer steps of a simulation.
    seed
        Of random tokens, directions and resamples.
    """

    starts: int = 64
    steps: int = 400
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises
        ------
        OptionError
            One is too small.
        """
        if self.starts < 1 or self.steps < 2 or self.seed < 0:
            raise OptionError(
                f"starts {self.starts}, steps {self.steps}, seed {self.seed}: at least 1, 2 and 0"
            )


class Evidence:
    """One model of a suite with everything that claims measure on it.

    Parameters
    ----------
    subject
        The model.
    settings
        How much is measured.
    step
        Told what is measured now.

    Raises
    ------
    EigenlensError
        When something is measured first: the model cannot be had or run.
    """

    def __init__(self, subject: Subject, settings: Settings, step: Step) -> None:
        self.subject = subject
        self.settings = settings
        self._step = step

    def _say(self, what: str) -> None:
        self._step(f"{self.subject.source}: {what}")

    @cached_property
    def session(self) -> Session:
        """The running model."""
        self._say("loading")
        return open_session(self.subject.source)

    @cached_property
    def spectrum(self) -> Spectrum:
        """Of the weights; raw F, the order that fits the norm's place."""
        self._say("spectrum")
        return spectrum(self.session.checkpoint, k=4, seed=self.settings.seed)

    @cached_property
    def layers(self) -> tuple[LayerSpectrum, ...]:
        """The spectra of self-attention layers."""
        return tuple(x for x in self.spectrum.layers if x.kind == "self")

    @property
    def shared(self) -> bool:
        """Whether one layer is applied at every depth."""
        return len(self.layers) == 1 and self.layers[0].steps > 1

    @cached_property
    def identity(self) -> list[VerifyRow]:
        """The equal-token identity of every layer, in the dtype of the running model."""
        self._say("equal tokens")
        return verify(self.session.checkpoint, self.session.model, seed=self.settings.seed)

    @property
    def identity_tolerance(self) -> float:
        """What the identity may miss in the dtype of the running model."""
        return TOLERANCES[str(self.session.dtype).removeprefix("torch.")]

    @cached_property
    def trace(self) -> Trace:
        """Real tokens, one attention sub-layer a step, no biases, all nulls."""
        self._say("trace")
        return trace(self.session, seed=self.settings.seed)

    @cached_property
    def simulation(self) -> Simulation:
        """The paper's model from many starts."""
        self._say("simulation")
        return simulate_model(
            self.session,
            steps=self.settings.steps,
            starts=self.settings.starts,
            n_tokens=CONSENSUS_TOKENS,
            form="normalised",
            seed=self.settings.seed,
        )

    @cached_property
    def steering(self) -> Steering:
        """The last layer steered to a random direction, as far as the claim asks for."""
        d = int(self.layers[-1].d)
        u = np.random.default_rng(self.settings.seed).standard_normal(d)
        self.__dict__.pop("session", None)  # the same weights come again, with their head
        gc.collect()
        self._say("steering")
        return steer(
            self.subject.source,
            direction=u / np.linalg.norm(u),
            target_cosine=STEERED,
            seed=self.settings.seed,
        )

    def final_alignment(self, basis: Float[np.ndarray, "d k"]) -> Float[np.ndarray, "s"]:
        """Mean alignment of each start's last tokens with a subspace."""
        return np.array([float(alignment(X, basis).mean()) for X in self.simulation.final])
