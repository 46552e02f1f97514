"""Where each model type keeps its attention: one row of data a model type.

How to add a type: find the pattern that names its V and O in a `*_patterns.py`, and write one
line in the file of its kind (`decoders`, `encoders`, `vision`, `audio`, `seq2seq`, `composites`),
with what it deviates in as keywords: those of the pattern, or any field of `rows.Stack`. Sizes need
nothing where the config's keys are the usual ones of `rows.KEYS`; `keys={"n_heads": ("my_key",)}`
says where they are not. A type without F goes to `refused.py` with its reason. Then run its
family test: it must pass the equal-token identity at 1e-10.
"""

from __future__ import annotations

from collections.abc import Mapping

from eigenlens.circuit.architectures.audio import AUDIO_ENCODERS
from eigenlens.circuit.architectures.composites import COMPOSITES
from eigenlens.circuit.architectures.decoders import DECODERS
from eigenlens.circuit.architectures.encoders import ENCODERS
from eigenlens.circuit.architectures.refused import REFUSED
from eigenlens.circuit.architectures.seq2seq import SEQ2SEQ
from eigenlens.circuit.architectures.vision import VISION_ENCODERS
from eigenlens.circuit.rows import Architecture
from eigenlens.errors import ArchitectureError

KINDS: Mapping[str, Mapping[str, Architecture]] = {
    "decoders": DECODERS,
    "encoders": ENCODERS,
    "vision": VISION_ENCODERS,
    "audio": AUDIO_ENCODERS,
    "seq2seq": SEQ2SEQ,
    "composites": COMPOSITES,
}


def merge(
    kinds: Mapping[str, Mapping[str, Architecture]], refused: Mapping[str, str]
) -> dict[str, Architecture]:
    """All tables as one.

    Raises
    ------
    ArchitectureError
        If a model type is in two tables, or in one and among the refused.
    """
    rows: dict[str, Architecture] = {}
    where: dict[str, str] = dict.fromkeys(refused, "refused")
    for kind, table in kinds.items():
        for model_type, row in table.items():
            if model_type in where:
                raise ArchitectureError(
                    f"model_type {model_type!r} has a row in {where[model_type]} and in {kind}: "
                    "remove one"
                )
            where[model_type], rows[model_type] = kind, row
    return rows


ARCHITECTURES: Mapping[str, Architecture] = merge(KINDS, REFUSED)
