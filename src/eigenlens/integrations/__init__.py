"""Watch a model while it trains: spectra, collapse measures and an alarm, in the training's logs.

Names are loaded when they are first used, so importing this package needs neither torch nor
transformers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_EXPORTS = {
    "Alarm": "eigenlens.integrations.alarms",
    "EigenlensCallback": "eigenlens.integrations.callback",
    "Reading": "eigenlens.integrations.reading",
    "Watch": "eigenlens.integrations.watching",
    "watch": "eigenlens.integrations.watching",
}

__all__ = ["Alarm", "EigenlensCallback", "Reading", "Watch", "watch"]

if TYPE_CHECKING:
    from eigenlens.integrations.alarms import Alarm
    from eigenlens.integrations.callback import EigenlensCallback
    from eigenlens.integrations.reading import Reading
    from eigenlens.integrations.watching import Watch, watch


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'eigenlens.integrations' has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return __all__
