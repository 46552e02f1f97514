"""A model's own layers iterated: which starts, which map, what its spectrum foretells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from eigenlens.circuit.circuit import OVCircuit
from eigenlens.circuit.describe import describe
from eigenlens.circuit.plans import layer_numbers
from eigenlens.dynamics.effective import (
    ORDER_OF,
    Target,
    circuit_target,
    effective_matrix,
    find_target,
)
from eigenlens.dynamics.live_maps import (
    LiveMap,
    Sight,
    live_multipliers,
    quick_threads,
    running,
    sight,
)
from eigenlens.dynamics.live_starts import Ids, prompt_ids, starts_of
from eigenlens.dynamics.maps import Form
from eigenlens.dynamics.masks import Mask, parse_mask
from eigenlens.dynamics.outcome import Tolerance
from eigenlens.dynamics.result import Simulation
from eigenlens.dynamics.simulate import (
    FORMS,
    Outlook,
    check_steps,
    finish,
    foretell,
    parse_radius,
)
from eigenlens.errors import ArchitectureError, OptionError, ShapeError
from eigenlens.live.batches import (
    make_batches,
    random_pixels,
)
from eigenlens.live.capture import capture
from eigenlens.live.masking import with_mask
from eigenlens.live.replay import Variant
from eigenlens.live.session import Session, open_session
from eigenlens.live.states import AttentionCall
from eigenlens.spectra.maps import build_map

DTYPES = ("float32", "float64")


def simulate_model(
    source: Any,
    *,
    steps: int = 100,
    norm: str = "l2",
    radius: float | str = 1.0,
    bias: bool = False,
    ffn: bool = False,
    form: str = "auto",
    mask: str = "auto",
    starts: int | None = None,
    n_tokens: int = 24,
    texts: Sequence[str] | None = None,
    token_ids: Ids | None = None,
    random_states: bool = False,
    states: Any = None,
    stack: str | None = None,
    layers: Sequence[int] | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    architecture: Any = None,
    trust_remote_code: bool = False,
    tie_tolerance: float = 0.01,
    tolerance: Tolerance | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Simulation:
    """Iterate a model's own layers, and say where tokens end and what was foretold.

    Parameters
    ----------
    source
        What `eigenlens.live.session.open_session` takes.
    steps
        Layer steps; a stack of different layers runs in order, then again.
    norm, radius, bias, ffn
        See `eigenlens.live.replay.Variant`; `radius` is a number or ``sqrt_d``.
    form
        ``normalised``, ``stream``, or ``auto``: normalised for post-norm models, else stream.
    mask
        ``auto`` (the model's own), ``full``, ``causal`` or ``window:W``.
    starts
        How many starts: of random tokens (default 1), of the prompts that are given (default all),
        or of random states.
    n_tokens
        Tokens in a start, unless prompts or states are given.
    texts, token_ids
        Prompts, as text or as ids; the embeddings of each are a start. They are cut to the length
        of the shortest.
    random_states
        Start at random points of the sphere instead of at embeddings.
    states
        Starts of one's own, (n, d) or (s, n, d).
    stack, layers
        Which stack (default the first), and which of its layers (default all).
    dtype, device, architecture, trust_remote_code
        See `open_session`; a live model keeps its own dtype and device, a session all of them.
    tie_tolerance
        Relative gap below which leaders count as tied.
    tolerance
        When directions count as equal and as still.
    seed
        Of random tokens or states.
    progress
        Called with (steps done, steps in all).

    Raises
    ------
    EigenlensError
        The source or an option is not usable; the message says what and what to do.
    """
    check_steps(steps)
    if form not in ("auto", *FORMS):
        raise OptionError(f"form {form!r} is unknown; use one of auto, {', '.join(FORMS)}")
    if mask != "auto":
        parse_mask(mask, "auto")
    if dtype not in DTYPES:
        raise OptionError(f"dtype {dtype!r} is unknown; use one of {', '.join(DTYPES)}")
    if starts is not None and starts < 1:
        raise OptionError(f"{starts} starts: at least 1 is needed")
    if n_tokens < 1:
        raise OptionError(f"{n_tokens} tokens: at least 1 is needed")
    if seed < 0:
        raise OptionError(f"seed is {seed}; it is a whole number, 0 or more")
    given = sum(x is not None for x in (texts, token_ids, states)) + random_states
    if given > 1:
        raise OptionError("give one of texts, token_ids, states and random_states, not several")
    variant = _variant(norm, radius, bias, ffn)
    session = open_session(
        source,
        dtype=dtype,
        device=device,
        architecture=architecture,
        trust_remote_code=trust_remote_code,
        tokenizer=texts is not None,
    )
    many = starts or len(texts or token_ids or [0])
    with quick_threads(session, many * n_tokens):
        session, warnings = _one_stack(session, stack)
        ids, more = prompt_ids(session, texts, token_ids, starts, n_tokens, seed)
        warnings += more
        calls, reference = _calls(session, ids, layers, ffn)
        form_ = _form(form, calls[0], variant)
        if mask != "auto":
            chosen = parse_mask(mask)
            n = int(calls[0].before.shape[1])
            calls = [with_mask(session, call, chosen.allowed(n)) for call in calls]
        X, start = starts_of(session, reference, ids, variant, starts, states, random_states, seed)
        if X.shape[1] != int(calls[0].before.shape[1]):
            raise ShapeError(
                f"states have {X.shape[1]} tokens, the pass that masks and positions come from has "
                f"{calls[0].before.shape[1]}: give n_tokens={X.shape[1]}"
            )
        maps = [LiveMap(session, call, form_, variant) for call in calls]
        circuits = [session.circuit(call.place) for call in calls]
        operator, note = _operator(circuits, norm)
        warnings += note
        order = ORDER_OF[form_]
        whole, own = _targets(circuits, form_, order, operator, tie_tolerance)
        sights = [sight(session, call, variant) for call in calls]
        foretold = None
        if _linear(circuits, variant, form_):
            foretold = foretell(whole, form_, _common(sights), X.shape[1], len(maps))
        names = {str(s.mask) if s.mask is not None else "auto" for s in sights}
        shown = mask if mask != "auto" else " and ".join(sorted(names))
        with running(session, maps):
            return finish(
                {**describe(session.checkpoint), "stack": calls[0].place.plan.stack},
                {
                    "form": form_,
                    "norm": norm,
                    "radius": variant.length(X.shape[2]) if norm == "l2" else None,
                    "bias": bias,
                    "ffn": ffn,
                    "mask": shown,
                    "steps": steps,
                    "starts": len(X),
                    "n_tokens": X.shape[1],
                    "start": start,
                    "layers": [call.place.plan.layer for call in calls],
                    "order": order,
                    "operator": operator,
                    "dtype": str(session.dtype).removeprefix("torch."),
                    "tie_tolerance": tie_tolerance,
                    "seed": seed,
                },
                maps,
                X,
                Outlook(whole, own, foretold),
                tolerance,
                progress,
                noise=float(session.torch.finfo(session.dtype).eps),
                multipliers=live_multipliers,
                warnings=warnings,
            )


def _variant(norm: str, radius: float | str, bias: bool, ffn: bool) -> Variant:
    if radius != "sqrt_d":
        radius = parse_radius(radius, 1)
    return Variant(norm=norm, radius=radius, bias=bias, ffn=ffn)  # type: ignore[arg-type]


def _one_stack(session: Session, stack: str | None) -> tuple[Session, list[str]]:
    """The session with one stack, and what was left out of it."""
    found = list(dict.fromkeys(p.plan.stack for p in session.places if p.plan.kind == "self"))
    if not found:
        raise ArchitectureError(f"{session.label} has no self-attention layer to iterate")
    chosen = stack or found[0]
    # All stacks still run in the pass that masks come from; only the chosen one is iterated.
    alone = session.only(chosen)
    others = [name for name in found if name != chosen]
    if stack is not None or not others:
        return alone, []
    return alone, [f"only the stack {chosen} is iterated; --stack {others[0]} for the other"]


def _calls(
    session: Session, ids: list[list[int]] | None, layers: Sequence[int] | None, ffn: bool
) -> tuple[list[AttentionCall], AttentionCall]:
    """The calls of one pass of the map, each layer as often as it differs, and the first of all."""
    batches = random_pixels(session, 1) if ids is None else make_batches(session, ids[:1])
    captured = next(capture(session, batches))
    calls = [call for call in captured.calls if call.place.plan.kind == "self"]
    first = calls[0]
    if layers is not None:
        layers = layer_numbers(layers, {call.place.plan.layer for call in calls}, session.label)
        calls = [call for call in calls if call.place.plan.layer in layers]
    if ffn:
        calls = list({id(call.block_recipe): call for call in calls}.values())
    return calls[: _period([call.place.key for call in calls])], first


def _period(keys: Sequence[Any]) -> int:
    """After how many calls the same layers come again (ALBERT: 1)."""
    for period in range(1, len(keys)):
        if len(keys) % period == 0 and all(a == b for a, b in zip(keys, keys[period:])):  # noqa: B905
            return period
    return len(keys)


def _form(form: str, call: AttentionCall, variant: Variant) -> Form:
    own: Form = "normalised" if call.place.post else "stream"
    if form in ("auto", own):
        return own
    if variant.norm == "real" or variant.ffn:
        raise OptionError(
            f"the model's own norms and blocks make a {own} map, not {form}: use --norm l2 and "
            "--no-ffn with --form"
        )
    return "normalised" if form == "normalised" else "stream"


def _operator(circuits: Sequence[OVCircuit], norm: str) -> tuple[str, list[str]]:
    """Which operator stands for a layer: with real norms, the one that has their gains in it."""
    if norm == "l2":
        return "raw", []
    for circuit in circuits:
        post = circuit.placement == "post"
        known = circuit.norm_out if post else circuit.norm_in
        behind = circuit.placement != "sandwich" or circuit.norm_out is not None
        if known is None or not behind:
            where = f"{circuit.stack} layer {circuit.layer}"
            return "raw", [f"{where}: its norm is not known, so targets are those of F alone"]
    return "folded", []


def _targets(
    circuits: Sequence[OVCircuit], form: Form, order: str, operator: str, tie_tolerance: float
) -> tuple[Target, list[Target]]:
    for circuit in circuits:
        if not circuit.is_square:
            raise ShapeError(
                f"{circuit.stack} layer {circuit.layer}: F is not square, so it cannot be iterated"
            )
    if len(circuits) == 1:
        whole = circuit_target(circuits[0], order, tie_tolerance, operator)
        return whole, [whole]
    matrices = [build_map(circuit, operator).dense() for circuit in circuits]
    whole = find_target(effective_matrix(matrices, form), order, tie_tolerance)
    own = [circuit_target(c, order, tie_tolerance, operator, whole=False) for c in circuits]
    return whole, own


def _linear(circuits: Sequence[OVCircuit], variant: Variant, form: Form) -> bool:
    """Whether equal tokens follow the power method on the operator, so that rates are foretold.

    That is so under the L2 norm, and in a stream under RMSNorm without a bias, whose gain is part
    of the operator and whose division by a length changes only the pace, the same in the long run;
    in neither with a feed-forward part, or with an affine part that is not 0.
    """
    affine = variant.bias and any(np.any(c.bias) for c in circuits)
    if variant.ffn or affine:
        return False
    if variant.norm == "l2":
        return True
    plain = all(
        c.placement in ("pre", "parallel")
        and c.norm_in is not None
        and c.norm_in.kind == "rmsnorm"
        and c.norm_in.bias is None
        for c in circuits
    )
    return form == "stream" and plain


def _common(sights: Sequence[Sight]) -> Mask | None:
    """The mask of all layers, where it is one and attention is even under it."""
    first = sights[0]
    return first.mask if first.even and all(s == first for s in sights) else None
