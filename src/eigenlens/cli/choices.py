"""Choices that several commands offer, each named as in the table it stands for."""

from __future__ import annotations

from enum import StrEnum


class Format(StrEnum):
    """What stdout carries."""

    table = "table"
    json = "json"
    csv = "csv"


class Dtype(StrEnum):
    """Compute dtypes."""

    float64 = "float64"
    float32 = "float32"


class LiveDtype(StrEnum):
    """Dtypes that a live model is loaded in."""

    float32 = "float32"
    float64 = "float64"
    bfloat16 = "bfloat16"
    float16 = "float16"


class OrderName(StrEnum):
    """What leads; the names of `eigenlens.spectra.orders.ORDERS`, and `auto`."""

    auto = "auto"
    residual = "residual"
    real = "real"
    modulus = "modulus"


class OperatorName(StrEnum):
    """The names of `eigenlens.spectra.maps.OPERATORS`."""

    raw = "raw"
    folded = "folded"


class SolverName(StrEnum):
    """The names of `eigenlens.spectra.solvers.SOLVERS`, and `auto`."""

    auto = "auto"
    dense = "dense"
    krylov = "krylov"


class WriteForm(StrEnum):
    """The names of `eigenlens.steering.result.FORM_NAMES`."""

    checkpoint = "checkpoint"
    lora = "lora"
    delta = "delta"
