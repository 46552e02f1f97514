"""What a survey is asked for, checked once before any checkpoint is opened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from eigenlens.errors import OptionError
from eigenlens.spectra.options import SpectrumOptions


@dataclass(frozen=True)
class TraceQuestion:
    """How a survey traces.

    Attributes
    ----------
    texts
        The prompts; None takes what fits each model.
    nulls
        Also what the measures are without an effect.
    batch_size, device, trust_remote_code
        As in `eigenlens.trace`.
    """

    texts: tuple[str, ...] | None = None
    nulls: bool = True
    batch_size: int = 8
    device: str = "cpu"
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise OptionError(f"batch size {self.batch_size}: it must be at least 1")

    @property
    def needs_gpu(self) -> bool:
        """Whether the models run on an accelerator."""
        return self.device.partition(":")[0] not in ("cpu", "meta")


@dataclass(frozen=True)
class Question:
    """What is computed of every checkpoint; travels to the workers.

    Attributes
    ----------
    spectrum
        Options of the spectra.
    stack, layers
        Which layers; None for all.
    architecture
        File of rules, absolute, or None.
    trace
        How to trace; None for spectra alone.
    lookup
        Whether kept results of layers are looked up in the worker's cache.
    """

    spectrum: SpectrumOptions = field(default_factory=SpectrumOptions)
    stack: str | None = None
    layers: tuple[int, ...] | None = None
    architecture: str | None = None
    trace: TraceQuestion | None = None
    lookup: bool = True

    @property
    def what(self) -> str:
        """``spectrum`` or ``trace``."""
        return "spectrum" if self.trace is None else "trace"

    def to_dict(self) -> dict[str, Any]:
        """The options for the record."""
        wanted = ("k", "order", "operator", "all", "solver", "tie_tolerance", "dtype", "seed")
        out: dict[str, Any] = {name: getattr(self.spectrum, name) for name in wanted}
        out |= {
            "stack": self.stack,
            "layers": None if self.layers is None else list(self.layers),
            "architecture": self.architecture,
            "trace": self.trace is not None,
        }
        if self.trace is not None:
            texts = self.trace.texts
            out |= {
                "prompts": None if texts is None else len(texts),
                "nulls": self.trace.nulls,
                "device": self.trace.device,
            }
        return out
