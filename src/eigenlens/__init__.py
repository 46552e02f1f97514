"""eigenlens: the spectral microscope and steering wheel for transformers.

Column vectors throughout: ``F = W_O W_V`` maps a token's state to what attention writes when all
tokens are equal to it. Libraries that write row vectors (TransformerLens) hold the transpose of
this F; the eigenvalues are the same, and their left eigenvectors are the right ones here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_EXPORTS = {
    "Checkpoint": "eigenlens.circuit.checkpoint",
    "EigenlensError": "eigenlens.errors",
    "Norm": "eigenlens.circuit.circuit",
    "OVCircuit": "eigenlens.circuit.circuit",
    "Spectrum": "eigenlens.spectra.result",
    "apply": "eigenlens.steering.applying",
    "compare": "eigenlens.comparing.compare",
    "inspect": "eigenlens.circuit.inspection",
    "open_checkpoint": "eigenlens.circuit.checkpoint",
    "reproduce": "eigenlens.claims.run",
    "simulate": "eigenlens.dynamics.simulate",
    "spectrum": "eigenlens.spectra.analyse",
    "steer": "eigenlens.steering.steer",
    "survey": "eigenlens.surveys.survey",
    "trace": "eigenlens.tracing.run",
    "unsteer": "eigenlens.steering.undo",
    "write_report": "eigenlens.report.page.write",
}

__all__ = [
    "Checkpoint",
    "EigenlensError",
    "Norm",
    "OVCircuit",
    "Spectrum",
    "__version__",
    "apply",
    "compare",
    "inspect",
    "open_checkpoint",
    "reproduce",
    "simulate",
    "spectrum",
    "steer",
    "survey",
    "trace",
    "unsteer",
    "write_report",
]

if TYPE_CHECKING:
    from eigenlens.circuit.checkpoint import Checkpoint, open_checkpoint
    from eigenlens.circuit.circuit import Norm, OVCircuit
    from eigenlens.circuit.inspection import inspect
    from eigenlens.claims.run import reproduce
    from eigenlens.comparing.compare import compare
    from eigenlens.dynamics.simulate import simulate
    from eigenlens.errors import EigenlensError
    from eigenlens.report.page.write import write_report
    from eigenlens.spectra.analyse import spectrum
    from eigenlens.spectra.result import Spectrum
    from eigenlens.steering.applying import apply
    from eigenlens.steering.steer import steer
    from eigenlens.steering.undo import unsteer
    from eigenlens.surveys.survey import survey
    from eigenlens.tracing.run import trace


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used, so that `import eigenlens` costs nothing."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'eigenlens' has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return __all__
