"""Quantised checkpoints as plain ones: each weight under its usual name, dequantised to float32.

`dequantised` wraps a store by what the config says of the scheme; whoever reads `X.weight` from the
wrapper need not know that the files hold codes, scales and zero points.
"""

from __future__ import annotations

from eigenlens.tensors.quantised.schemes import dequantised
from eigenlens.tensors.quantised.store import QuantisedStore

__all__ = ["QuantisedStore", "dequantised"]
