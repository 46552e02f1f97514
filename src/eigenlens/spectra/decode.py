"""What the leading vectors say in tokens: the right one is written, the left one is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from eigenlens.circuit.checkpoint import Checkpoint
from eigenlens.errors import SourceError
from eigenlens.spectra.result import LayerSpectrum, Tokens


def decode_leader(checkpoint: Checkpoint, layer: LayerSpectrum, n: int) -> LayerSpectrum:
    """`layer` with the `n` tokens at both ends of its leading right and left vectors.

    The right vector goes through the unembedding with the final norm's gain where the model has
    them, else through the raw embedding; the left one is compared with the embedding. `through`
    says which matrix it was. Of a complex pair the imaginary parts are decoded as well. A layer
    led by the kernel has no leading vector and gets none.

    Raises
    ------
    OptionError
        The model has no token embedding.
    SourceError
        The model comes without a vocabulary.
    """
    readout = checkpoint.readout
    if checkpoint.source is None:
        raise SourceError("plain arrays come without a vocabulary; leave out decode")
    if layer.target == "kernel" or layer.right_vectors.shape[1] == 0:
        return layer
    texts = checkpoint.source.tokens()
    right, left = layer.right_vectors[:, 0], layer.left_vectors[:, 0]
    parts = {"right": right.real, "left": left.real}
    if layer.eigenvalues[0].imag != 0:
        parts |= {"right_imag": right.imag, "left_imag": left.imag}
    tokens = {}
    for side, vector in parts.items():
        writes = side.startswith("right")
        scores = readout.write_logits(vector) if writes else readout.read_scores(vector)
        through = readout.write_note if writes else readout.read_note
        tokens[side] = extremes(scores, texts, n, through)
    return replace(layer, tokens=tokens)


def extremes(
    scores: Float[np.ndarray, "vocab"], texts: Sequence[str], n: int, through: str
) -> Tokens:
    """The `n` highest and the `n` lowest scores with their tokens.

    Rows of the matrix beyond the vocabulary (padding) have no text and are left out.
    """
    scores = scores[: len(texts)]
    n = min(n, scores.size)
    order = np.argsort(-scores, kind="stable")
    return Tokens(
        positive=tuple((texts[i], float(scores[i])) for i in order[:n]),
        negative=tuple((texts[i], float(scores[i])) for i in order[::-1][:n]),
        through=through,
    )
