"""Text encoders: one line a model type, by the pattern of their names."""

from __future__ import annotations

from collections.abc import Mapping

from eigenlens.circuit.architectures.encoders_bert import BERT_ENCODERS
from eigenlens.circuit.architectures.encoders_other import OTHER_ENCODERS
from eigenlens.circuit.rows import Architecture

ENCODERS: Mapping[str, Architecture] = {**BERT_ENCODERS, **OTHER_ENCODERS}
