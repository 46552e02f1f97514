"""What a spectrum run will cost, before any weight is read: bytes, peak memory, time.

Sizes come from the headers; the time from counts of operations and a calibration of a tenth of a
second on this machine. Bytes and memory are close, the time is good to a factor of about two on an
idle machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from eigenlens.blas import cores, one_thread
from eigenlens.circuit.checkpoint import Checkpoint
from eigenlens.circuit.circuit import OVCircuit
from eigenlens.circuit.describe import describe
from eigenlens.circuit.plans import LayerPlan
from eigenlens.circuit.reading import comes_in_runs
from eigenlens.frames import Result
from eigenlens.spectra.in_core import FROM as IN_CORE_FROM
from eigenlens.spectra.options import SpectrumOptions
from eigenlens.spectra.solvers import choose_solvers
from eigenlens.tensors.dtypes import DTYPES
from eigenlens.tensors.store import TensorStore

PROGRAM_BYTES = 80_000_000  # the interpreter with numpy and this package
READ_BYTES_PER_SECOND = 1e9  # of a local disk whose pages are cached in part; networks are slower
START_SECONDS = 0.3
_GEEV_FLOPS = 25  # times n^3, all eigenvalues with right vectors (Golub & Van Loan, 7.5.6)
_KRYLOV_PRODUCTS = 12  # times sqrt(n): what a run needs on a flat spectrum, measured for k = 8
_KRYLOV_BASIS = 2 * 97  # vectors that two runs hold


@dataclass(frozen=True)
class LayerCost:
    """What one layer takes.

    Attributes
    ----------
    name
        ``decoder.3``.
    d, solved
        Width of the stream, and size of the matrix that is solved: min(r, d), or d for the folded
        operator of a post-norm layer.
    solver
        The solver that is tried first.
    weights
        Entries of W_V and W_O.
    read_bytes
        Bytes of the tensors that are read, as stored.
    factor_bytes
        F as two factors in the compute dtype, as one layer waits for another that is read by
        blocks.
    grouped
        Whether it can be read by blocks of rows, so that its stored form is never in memory.
    memory_bytes
        Working memory at the peak; the stored weights included unless it is `grouped`.
    product_flops, eig_flops, moved_bytes
        Operations in matrix products and in the dense solver, bytes streamed by the Krylov solver.
    """

    name: str
    d: int
    solved: int
    solver: str
    weights: int
    read_bytes: int
    factor_bytes: int
    grouped: bool
    memory_bytes: int
    product_flops: float
    eig_flops: float
    moved_bytes: float

    def by_blocks(self, waits: bool) -> bool:
        """Whether to read it by blocks: not where it `waits` for another and is less as stored."""
        return self.grouped and not (waits and self.read_bytes < self.factor_bytes)


@dataclass(frozen=True)
class Rates:
    """How fast this machine is: flops a second in products and in geev, bytes a second streamed."""

    product: float
    eig: float
    stream: float


@dataclass(frozen=True)
class Estimate(Result):
    """The cost of a run, schema ``eigenlens.estimate/1``.

    Attributes
    ----------
    model
        The model block of every command.
    options
        k, all, operator, solver and dtype that the estimate is for.
    layers
        The layers' costs.
    read_bytes
        Bytes to read, or to fetch for a model on the hub.
    memory_bytes
        Peak memory of the process.
    seconds
        Reading from a local disk and computing; fetching is not in it.
    warnings
        What deserves to be known before the start.
    """

    SCHEMA = "eigenlens.estimate/1"

    model: dict[str, Any]
    options: dict[str, Any]
    layers: tuple[LayerCost, ...]
    read_bytes: int
    memory_bytes: int
    seconds: float
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            **self._head(model=self.model),
            "read_bytes": self.read_bytes,
            "memory_bytes": self.memory_bytes,
            "seconds": self.seconds,
            "layers": self.rows(),
        }

    def rows(self) -> list[dict[str, Any]]:
        """One flat record a layer."""
        return [asdict(layer) for layer in self.layers]


def estimate(
    checkpoint: Checkpoint,
    options: SpectrumOptions,
    *,
    stack: str | None = None,
    layers: Sequence[int] | None = None,
    rates: Rates | None = None,
) -> Estimate:
    """What a run with these options would cost; nothing beyond config and headers is read.

    Parameters
    ----------
    checkpoint
        An open model.
    options, stack, layers
        As for `eigenlens.spectra.analyse.iterate`.
    rates
        Of the machine; measured in a tenth of a second where None.

    Raises
    ------
    OptionError
        There is no such stack or layer.
    """
    costs = layer_costs(checkpoint, options, stack=stack, layers=layers)
    rates = rates or calibrate(options.dtype)
    wanted = ("k", "all", "operator", "solver", "dtype", "per_head")
    seconds = total_seconds(costs, rates)
    return Estimate(
        model=describe(checkpoint),
        options={name: getattr(options, name) for name in wanted},
        layers=tuple(costs),
        read_bytes=sum(c.read_bytes for c in costs),
        memory_bytes=peak_bytes(costs),
        seconds=seconds,
        warnings=tuple(w for w in (dense_warning(costs, lambda: rates),) if w),
    )


def layer_costs(
    checkpoint: Checkpoint,
    options: SpectrumOptions,
    *,
    stack: str | None = None,
    layers: Sequence[int] | None = None,
) -> list[LayerCost]:
    """The cost of every layer that has a spectrum, in the sequence of a run, from headers alone."""
    circuits = checkpoint.circuits(stack=stack, layers=layers)
    store = None if checkpoint.source is None else checkpoint.source.store
    return [
        _cost(name, *_sizes(item, store, options), options)
        for name, item in zip(circuits.names, circuits.items, strict=True)
        if _width_in(item) == _width_out(item)
    ]


def total_seconds(costs: Sequence[LayerCost], rates: Rates) -> float:
    """Time of a run from the counts: start, reading, products, dense solutions, Krylov streams."""
    from eigenlens.spectra.schedule import workers_for

    reading = sum(c.read_bytes for c in costs) / READ_BYTES_PER_SECOND
    computing = sum(
        c.product_flops / rates.product + c.eig_flops / rates.eig + c.moved_bytes / rates.stream
        for c in costs
    )
    return START_SECONDS + reading + computing / workers_for(costs)


def peak_bytes(costs: Sequence[LayerCost]) -> int:
    """Peak memory of a run: the largest layer, beside it what is read ahead or solved as well."""
    from eigenlens.spectra.schedule import workers_for

    if not costs:
        return PROGRAM_BYTES
    largest = max(c.memory_bytes for c in costs)
    workers = workers_for(costs)
    if workers > 1 or len(costs) < 2:
        return PROGRAM_BYTES + workers * largest
    ahead = max(c.factor_bytes if c.by_blocks(True) else c.read_bytes for c in costs)
    beside = max(0 if c.by_blocks(True) else c.read_bytes * c.grouped for c in costs)
    return PROGRAM_BYTES + largest + ahead + beside


def dense_warning(
    costs: Sequence[LayerCost], rates: Callable[[], Rates], above: float = 30.0
) -> str | None:
    """A sentence on a dense decomposition that takes long, None if no layer's is over `above` s.

    `rates` is asked only where a layer is large enough for it to matter.
    """
    dense = [c for c in costs if c.solved >= 1024 and c.solver == "dense"]
    if not dense:
        return None
    found = rates()
    seconds = sum(c.eig_flops / found.eig for c in dense)
    largest = max(dense, key=lambda c: c.solved)
    each = largest.eig_flops / found.eig
    if each <= above:
        return None
    gigabytes = largest.memory_bytes / 1e9
    return (
        f"all eigenvalues of a {largest.solved} x {largest.solved} matrix take about {each:.0f} s "
        f"and {gigabytes:.1f} GB a layer, {seconds / 60:.0f} min for {len(dense)} such layers; "
        "without --all only the leading ones are computed, which is much faster"
    )


def calibrate(dtype: str = "float64", budget: float = 0.1) -> Rates:
    """Measure this machine for about `budget` seconds: products, geev, streaming."""
    rng = np.random.default_rng(0)
    a = np.asarray(rng.standard_normal((384, 384)), dtype=dtype)
    small = np.ascontiguousarray(a[:128, :128])
    long = np.ones(8_000_000 // a.itemsize, dtype=dtype)
    part = budget / 3
    product = 2 * 384**3 / _fastest(lambda: a @ a, part)
    with one_thread():
        eig = _GEEV_FLOPS * 128**3 / _fastest(lambda: np.linalg.eig(small), part)
        stream = long.nbytes / _fastest(lambda: long @ long, part)
    return Rates(product, eig, stream)


def _fastest(work: Callable[[], Any], budget: float) -> float:
    """Shortest time of `work` over runs that take `budget` seconds together; at least two."""
    best, begun = math.inf, time.perf_counter()
    for run in range(1000):
        start = time.perf_counter()
        work()
        now = time.perf_counter()
        best = min(best, now - start)
        if run and now - begun > budget:
            break
    return max(best, 1e-7)


def _width_in(item: LayerPlan | OVCircuit) -> int:
    return item.d_in if isinstance(item, OVCircuit) else item.geometry.width_in


def _width_out(item: LayerPlan | OVCircuit) -> int:
    return item.d_model if isinstance(item, OVCircuit) else item.geometry.d_model


def _sizes(
    item: LayerPlan | OVCircuit, store: TensorStore | None, options: SpectrumOptions
) -> tuple[int, int, int, bool, int, int]:
    """(d, r, width of W_O, post-norm, bytes stored, bytes held as stored; 0 if read by blocks)."""
    if isinstance(item, OVCircuit):
        held = item.W_V.nbytes + item.W_O.nbytes
        return (
            *(item.d_model, item.W_V.shape[0], item.W_O.shape[1], item.placement == "post"),
            *(0, held),
        )
    g = item.geometry
    stored = held = 0
    for name in dict.fromkeys(item.tensors):
        rows = item.layout.rows(g) if name == item.value else None
        if store is not None:
            a, b = _tensor_bytes(store, name, rows)
            stored, held = stored + a, held + b
    if store is not None and not options.per_head and comes_in_runs(item, store, options.dtype):
        held = 0
    return g.d_model, g.value_width, g.output_width, item.placement == "post", stored, held


def _tensor_bytes(store: TensorStore, name: str, rows: slice | None) -> tuple[int, int]:
    """Bytes of a tensor (or of its rows) in the file and once read."""
    info = store.info(name)
    count = math.prod(info.shape)
    if rows is not None and info.shape:
        start, stop, _ = rows.indices(info.shape[0])
        count = count // max(info.shape[0], 1) * max(stop - start, 0)
    if info.dtype in DTYPES:
        size = count * DTYPES[info.dtype].itemsize
        return size, size
    return math.ceil(count * _quantised_bytes(info.dtype)), 4 * count  # dequantised to float32


def _quantised_bytes(dtype: str) -> float:
    """Bytes a weight of a GGUF type; 1 where the type is not known."""
    try:
        import gguf

        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype]]
    except (ImportError, KeyError):
        return 1.0
    return float(size) / float(block)


def _cost(
    name: str,
    d: int,
    r: int,
    width: int,
    post: bool,
    stored: int,
    held: int,
    options: SpectrumOptions,
) -> LayerCost:
    item = np.dtype(options.dtype).itemsize
    full = r >= d or (post and options.operator == "folded")
    n = d if full else r
    k = None if options.all else max(options.k, 2)
    solver = choose_solvers(options.solver, n, None if k is None else min(k, n))[0].name
    factors = 2.0 * d * r * item
    # The core, both Gram matrices or the product, and in the dense solver four complex copies.
    small = (1 if full else 3) * n * n * item
    in_core = not full and k is None and d * n * n >= IN_CORE_FROM
    squares = 20 if in_core else 8
    working = squares * n * n * item if solver == "dense" else _KRYLOV_BASIS * n * item
    every = k is None and (options.keep_vectors or not in_core)
    lifted = 8 * d * (n if every else options.k + 8) * item
    products = 2.0 * d * d * r if full else 6.0 * d * r * r
    pieces = options.per_head * 2.0 * d * width * max(1, width // max(1, r)) * 4
    eig = float(_GEEV_FLOPS * n**3) if solver == "dense" else 0.0
    passes = _KRYLOV_PRODUCTS * math.sqrt(n) if solver == "krylov" else 0.0
    return LayerCost(
        name=name,
        d=d,
        solved=n,
        solver=solver,
        weights=d * (r + width),
        read_bytes=stored,
        factor_bytes=int(factors),
        grouped=stored > 0 and held == 0,
        memory_bytes=int(held + factors + small + max(working, 0) + lifted),
        product_flops=products + pieces,
        eig_flops=eig,
        moved_bytes=passes * n * n * item * (2.0 / min(2, cores())),
    )
