"""What a direction of the residual stream says in tokens, and which tokens it reads.

Embedding matrices are the largest tensors of a checkpoint, so they are read in blocks of rows; only
`W_U` and `W_E` return them whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float

from eigenlens.arrays import check_finite, upcast
from eigenlens.circuit import rows as table
from eigenlens.circuit.circuit import Norm, Placement
from eigenlens.circuit.facts import decide
from eigenlens.circuit.planner import BIAS_NAMES, GAIN_NAMES, effective_offset
from eigenlens.circuit.plans import StackPlan
from eigenlens.errors import ArchitectureError, ShapeError
from eigenlens.inert import inert
from eigenlens.tensors.store import TensorStore

BLOCK_ENTRIES = 4_000_000  # of one block of an embedding matrix: 16 MB in float32


@dataclass(frozen=True)
class Readout:
    """The way from the residual stream to tokens and back, for one checkpoint.

    Attributes
    ----------
    row
        The architecture's readout names.
    stack
        The stack whose stream is read (its prefix, config and geometry).
    store
        The tensors.
    """

    row: table.Readout
    stack: StackPlan
    store: TensorStore

    def write_logits(self, v: Float[np.ndarray, "d"]) -> Float[np.ndarray, "vocab"]:
        """Score of every token for a direction that is written: large where the model says it.

        For pre-norm models the unembedding of `diag(g) P v` (the final norm without its division);
        for masked-language heads `decoder diag(g) P dense v` where the head is linear; else the
        raw embedding. `write_note` says which. Biases are left out: v has no scale of its own.
        """
        x = upcast(v)
        if self._mode == "head":
            x = self._weight(self.row.head_dense or "", prefix=False) @ x
            norm = self._norm(self.row.head_norm, prefix=False)
            x = norm.linear(x) if norm else x
        elif self._mode == "norm":
            norm = self.final_norm
            x = norm.linear(x) if norm else x
        if self._mode == "raw":
            return self.read_scores(x)
        return self._scores(self._unembedding[0], self._down(x))

    @property
    def write_note(self) -> str:
        """How `write_logits` reads a direction."""
        if self._mode == "raw":
            return f"raw embedding ({self._why_raw})"
        name, tied = self._unembedding
        head = f"{'tied ' if tied else ''}unembedding '{inert(name)}'"
        if self._mode == "head":
            return f"head's linear transform, then the {head}"
        return f"final norm's gain, then the {head}" if self.final_norm else head

    def read_scores(self, w: Float[np.ndarray, "d"]) -> Float[np.ndarray, "vocab"]:
        """Inner product of every token's embedding with a direction that is read."""
        return self._scores(self._embedding, self._lift_back(upcast(w)))

    @property
    def read_note(self) -> str:
        """How `read_scores` reads a direction."""
        lift = self._lift_name
        return f"embedding '{inert(self._embedding)}'" + (f", then '{inert(lift)}'" if lift else "")

    def W_E(self) -> Float[np.ndarray, "vocab d"]:
        """The embedding in the residual stream's coordinates, float32 (vocab, d)."""
        lift = self._lift
        return self._whole(self._embedding, None if lift is None else lift.T)

    def W_U(self) -> Float[np.ndarray, "vocab d"]:
        """The unembedding in the residual stream's coordinates, float32 (vocab, d).

        Norm gains are not folded in. Where `write_note` says raw embedding, this is `W_E`.
        """
        if self._mode == "raw":
            return self.W_E()
        right = self._down_matrix
        if self._mode == "head":
            dense = self._weight(self.row.head_dense or "", prefix=False)
            right = dense if right is None else right @ dense
        return self._whole(self._unembedding[0], right)

    def copying_map(self) -> Float[np.ndarray, "d d"]:
        """`G = W_E^T W_U` (d, d): the non-zero spectrum of `W_U F W_E^T` is that of `F G`.

        In blocks of rows: the copying score then needs no (vocab, d) matrix at all.
        """
        raw = self._mode == "raw"
        lift, right = self._lift, self._down_matrix
        names = [self._embedding, self._embedding if raw else self._unembedding[0]]
        total: Float[np.ndarray, "e f"] | None = None
        for rows, left in self._blocks(names[0]):
            other = left if names[0] == names[1] else self._block(names[1], rows)
            part = upcast(left, np.float64).T @ upcast(other, np.float64)
            total = part if total is None else total + part
        if total is None:
            raise ShapeError(f"tensor '{inert(names[0])}' has no rows: expected one a token")
        if raw:
            right = None if lift is None else lift.T
        elif self._mode == "head":
            dense = self._weight(self.row.head_dense or "", prefix=False)
            right = dense if right is None else right @ dense
        total = total if lift is None else lift @ total
        return total if right is None else total @ right

    @property
    def has_vocabulary(self) -> bool:
        """Whether the files hold a token embedding (towers and adapters are saved without)."""
        return self._first(self.row.embedding) is not None

    @property
    def roles(self) -> dict[str, str]:
        """Which tensor plays which part in `copying_map`, and how the head is read."""
        if not self.has_vocabulary:
            return {}
        named = {
            "embedding": self._embedding,
            "unembedding": self._unembedding[0],
            "lift": self._lift_name,
            "down": self._first(self.row.unembedding_map),
        }
        return {"mode": self._mode} | {role: name for role, name in named.items() if name}

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the matrices that `copying_map` is made of; empty without an embedding."""
        if not self.has_vocabulary:
            return ()
        names = [self._embedding, self._unembedding[0], self._lift_name]
        names.append(self._first(self.row.unembedding_map))
        if self._mode == "head":
            names.append(f"{self.row.head_dense}.weight")
        return tuple(name for name in names if name)

    @cached_property
    def final_norm(self) -> Norm | None:
        """The norm before the unembedding; None for post-norm models."""
        if not self.row.final_norm or self._placement == "post":
            return None
        if not decide(self.row.has_final_norm, self.stack.config):
            return None
        return self._norm(*self.row.final_norm)

    # -- which way, found by names alone ---------------------------------------------------------

    @property
    def _placement(self) -> Placement:
        return decide(self.stack.stack.placement, self.stack.config)

    @cached_property
    def _names(self) -> frozenset[str]:
        return self.store.names()

    @cached_property
    def _activation(self) -> str:
        key = self.row.activation
        return key[1:] if key.startswith("=") else str(self.stack.config.get(key, "gelu"))

    @cached_property
    def _unembedding(self) -> tuple[str, bool]:
        """Name of the output head's weight, and whether it is the embedding; empty if none."""
        tied: bool = decide(self.row.tied, self.stack.config)
        here = [f"{n}.weight" for n in self.row.unembedding if f"{n}.weight" in self._names]
        if here:
            return here[0], False
        return (self._embedding, True) if tied else ("", False)

    @cached_property
    def _mode(self) -> str:
        return "raw" if self._why_raw else "head" if self.row.head_dense else "norm"

    @cached_property
    def _why_raw(self) -> str:
        """Why only the raw embedding can be used; empty where there is a better way."""
        if self.row.head_dense:
            if f"{self.row.head_dense}.weight" not in self._names:
                return "the files hold no masked-language head"
            if self._activation != "linear":
                return f"the head's transform is not linear: {inert(self._activation)}"
        if not self._unembedding[0]:
            return "the files hold no output head and it is not tied"
        return ""

    def _first(self, modules: tuple[str, ...], *, prefix: bool = True) -> str | None:
        before = self.stack.prefix if prefix else ""
        for module in modules:
            for suffix in GAIN_NAMES:
                if f"{before}{module}.{suffix}" in self._names:
                    return f"{before}{module}.{suffix}"
        return None

    @cached_property
    def _embedding(self) -> str:
        found = self._first(self.row.embedding)
        if found is None:
            wanted = f"{self.stack.prefix}{self.row.embedding[0]}.weight"
            self.store.info(wanted)  # raises with the nearest names
            raise ArchitectureError(f"no tensor '{inert(wanted)}' in these files")
        return found

    @property
    def _lift_name(self) -> str | None:
        return self._first(self.row.embedding_map)

    @cached_property
    def _lift(self) -> Float[np.ndarray, "d e"] | None:
        return None if self._lift_name is None else self._read(self._lift_name)

    @cached_property
    def _down_matrix(self) -> Float[np.ndarray, "e d"] | None:
        name = self._first(self.row.unembedding_map)
        return None if name is None else self._read(name)

    # -- reading ---------------------------------------------------------------------------------

    def _lift_back(self, w: Float[np.ndarray, "d"]) -> Float[np.ndarray, "e"]:
        return w if self._lift is None else self._lift.T @ w

    def _down(self, x: Float[np.ndarray, "d"]) -> Float[np.ndarray, "e"]:
        return x if self._down_matrix is None else self._down_matrix @ x

    def _read(self, name: str) -> Float[np.ndarray, "..."]:
        array = self.store.read(name)
        check_finite(inert(name), array)
        return upcast(array)

    def _weight(self, module: str, *, prefix: bool = True) -> Float[np.ndarray, "a b"]:
        return self._read(f"{self.stack.prefix if prefix else ''}{module}.weight")

    def _norm(self, *modules: str | None, prefix: bool = True) -> Norm | None:
        name = self._first(tuple(m for m in modules if m), prefix=prefix)
        if name is None:
            return None
        stack = self.stack.stack
        offset = effective_offset(stack, self.stack.naming)
        module = name.rpartition(".")[0]
        bias = [f"{module}.{end}" for end in BIAS_NAMES if f"{module}.{end}" in self._names]
        return Norm(
            decide(stack.norm_kind, self.stack.config),
            self._read(name) + offset,
            self._read(bias[0]) if bias else None,
            name,
        )

    def _blocks(self, name: str) -> Iterator[tuple[slice, Float[np.ndarray, "rows e"]]]:
        shape = self.store.info(name).shape
        if len(shape) != 2:
            raise ShapeError(f"tensor '{inert(name)}' has shape {shape}, expected (vocab, width)")
        step = max(1, BLOCK_ENTRIES // max(1, shape[1]))
        for start in range(0, shape[0], step):
            rows = slice(start, min(shape[0], start + step))
            yield rows, self._block(name, rows)

    def _block(self, name: str, rows: slice) -> Float[np.ndarray, "rows e"]:
        block = self.store.read(name, rows)
        check_finite(inert(name), block)
        return upcast(block, np.float64 if block.dtype.itemsize > 4 else np.float32)

    def _scores(self, name: str, x: Float[np.ndarray, "e"]) -> Float[np.ndarray, "vocab"]:
        width = self.store.info(name).shape[-1]
        if width != x.shape[0]:
            raise ShapeError(
                f"tensor '{inert(name)}' has width {width}, but the stream arrives with "
                f"{x.shape[0]}: a map between them is missing from the files"
            )
        return np.concatenate([block @ x.astype(block.dtype) for _, block in self._blocks(name)])

    def _whole(
        self, name: str, right: Float[np.ndarray, "e d"] | None
    ) -> Float[np.ndarray, "vocab d"]:
        parts = [
            (block if right is None else block @ right.astype(block.dtype)).astype(np.float32)
            for _, block in self._blocks(name)
        ]
        return np.concatenate(parts)
