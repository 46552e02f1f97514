"""Text decoders: one line a model type, by the pattern of their names."""

from __future__ import annotations

from collections.abc import Mapping

from eigenlens.circuit.architectures.decoders_hybrid import HYBRID_DECODERS
from eigenlens.circuit.architectures.decoders_llama import LLAMA_DECODERS
from eigenlens.circuit.architectures.decoders_other import OTHER_DECODERS
from eigenlens.circuit.rows import Architecture

DECODERS: Mapping[str, Architecture] = {**LLAMA_DECODERS, **HYBRID_DECODERS, **OTHER_DECODERS}
