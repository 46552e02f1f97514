"""The claims of Li and Altafini (arXiv 2605.25619), each with the measurement that decides it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from eigenlens.claims.evidence import STEERED, Evidence
from eigenlens.claims.verdicts import Finding, most_layers, most_starts, side, starts_between
from eigenlens.dynamics.outcome import UNSETTLED
from eigenlens.dynamics.result import Share
from eigenlens.errors import UnreachableError
from eigenlens.measure.significance import holm
from eigenlens.shown.words import count_text
from eigenlens.tracing.result import LayerTrace

ALIGNED = 0.99
"""Mean alignment of a start's tokens from which they count as having reached the target."""
RARE = 0.1
"""Share of starts below which an outcome counts as rare."""


@dataclass(frozen=True)
class Claim:
    """One claim.

    Attributes
    ----------
    name
        What scripts know it by.
    statement
        The claim in a sentence.
    choice
        What was chosen where the paper leaves it open.
    about
        Whether the claim speaks of this model; asked before `judge`.
    judge
        Measures it.
    """

    name: str
    statement: str
    choice: str
    about: Callable[[Evidence], bool]
    judge: Callable[[Evidence], Finding]


def _any(e: Evidence) -> bool:
    return True


def _text(e: Evidence) -> bool:
    return not e.session.vision and bool(e.layers)


def _shared(e: Evidence) -> bool:
    return e.shared


def _shared_real(e: Evidence) -> bool:
    return e.shared and e.layers[0].regime == "real_dominant"


def _shared_complex(e: Evidence) -> bool:
    return e.shared and e.layers[0].regime == "complex_dominant"


def _named(e: Evidence) -> bool:
    return e.subject.ends is not None and e.shared


def _varying(e: Evidence) -> bool:
    return not e.shared and len(e.layers) > 1


def power_step(e: Evidence) -> Finding:
    """The equal-token identity, the worst layer."""
    rows = e.identity
    worst = max(max(r.error_one or 0.0, r.error_four, r.error_heads or 0.0) for r in rows)
    return Finding(
        "holds" if all(r.ok for r in rows) else "fails",
        f"largest relative error {worst:.0e} over {count_text(len(rows), 'layer')} "
        f"(allowed {e.identity_tolerance:.0e})",
        worst,
        None,
        {"layers": len(rows)},
    )


def consensus(e: Evidence) -> Finding:
    """Starts whose tokens all align with v1."""
    reached = e.final_alignment(e.layers[0].basis())
    found = most_starts(int((reached > ALIGNED).sum()), len(reached), "all tokens along v1")
    gap = e.layers[0].gap or 0.0
    return replace(
        found,
        measured=f"{found.measured} (gap {100 * gap:.1f} %, alignment {np.median(reached):.3f})",
        details=found.details | {"gap": gap, "alignment": float(np.median(reached))},
    )


def rotation(e: Evidence) -> Finding:
    """Starts that end turning in the leading plane; those that may yet are not counted against."""
    layer, run = e.layers[0], e.simulation
    counts = {b.label: b.count for b in run.basins}
    reached = e.final_alignment(layer.basis())
    count = min(counts.get("rotation", 0), int((reached > ALIGNED).sum()))
    found = most_starts(
        count,
        len(reached),
        "rotation in the leading plane",
        unsettled=counts.get(UNSETTLED, 0),
    )
    seen = run.outcome.observed.angle_per_step
    foretold = layer.angle
    turned = "no steady angle" if seen is None else f"{abs(seen):.4f} rad a step"
    return replace(
        found,
        measured=f"{found.measured}; {turned}, arg m_1 = {abs(foretold or 0.0):.4f}",
        details=found.details | {"angle": seen, "foretold": foretold},
    )


def other_ends(e: Evidence) -> Finding:
    """Starts whose tokens do not all become one; those that are one stay so, settled or not."""
    run = e.simulation
    counts = {b.label: b.count for b in run.basins}
    n = sum(counts.values())
    apart = sum(counts.get(label, 0) for label in ("bipartite", "clusters", "none"))
    unknown = sum(b.count - b.together for b in run.basins if b.label == UNSETTLED)
    low, high = starts_between(apart, apart + unknown, n)
    # Rare is a claim about the upper end, so the sides change places.
    verdict = {"holds": "fails", "fails": "holds"}.get(side(low, high, RARE), "undecided")
    told = ", ".join(_ended(b) for b in run.basins if b.count)
    return Finding(
        verdict, f"of {count_text(n, 'start')}: {told}", apart / n, (low, high), {"counts": counts}
    )


def _ended(basin: Share) -> str:
    """``consensus 63``; of starts that have not settled, in how many tokens are one."""
    if basin.label != UNSETTLED:
        return f"{basin.label} {basin.count}"
    one = "all" if basin.together == basin.count else str(basin.together)
    return f"not settled {basin.count} (tokens are one in {one})"


def named_end(e: Evidence) -> Finding:
    """Whether this size of ALBERT ends where the paper says."""
    if e.subject.ends == "rotation":
        return rotation(e)
    reached = e.final_alignment(_leading_two(e))
    found = most_starts(int((reached > ALIGNED).sum()), len(reached), "tokens in span(v1, v2)")
    return replace(found, measured=f"{found.measured} (alignment {np.median(reached):.3f})")


def _leading_two(e: Evidence) -> Float[np.ndarray, "d k"]:
    """An orthonormal basis of the two leading eigenvectors, or of the leading plane."""
    vectors = e.layers[0].right_vectors[:, :2]
    parts = np.concatenate([vectors.real, vectors.imag], axis=1)
    u, sizes, _ = np.linalg.svd(parts, full_matrices=False)
    return np.asarray(u[:, sizes > 1e-8 * sizes[0]][:, :2])


def _self(e: Evidence) -> list[LayerTrace]:
    """The traced self-attention calls: the claims say nothing of cross-attention."""
    return [x for x in e.trace.layers if x.kind == "self"]


def gamma_above(e: Evidence) -> Finding:
    """Gamma against that of a random direction, by rank among random directions."""
    layers = _self(e)
    p = holm([x.p_gamma for x in layers])
    n = len(layers)
    above = sum(q is not None and q < 0.05 for q in p)
    below = sum(x.p_gamma is not None and x.p_gamma > 0.95 for x in layers)
    weak = sum(x.gamma < 0.5 for x in layers)
    chance = dict.fromkeys(f"{level(x.expected_gamma for x in layers):.3f}" for level in (min, max))
    low, high = above / n, (n - below) / n
    return Finding(
        side(low, high, 0.5),
        f"beyond random directions in {above} of {count_text(n, 'layer')}; gamma "
        f"{min(x.gamma for x in layers):.3f} to {max(x.gamma for x in layers):.3f} "
        f"(random {' to '.join(chance)}), under 1/2 in {weak}",
        above / n,
        (low, high),
        {"layers": n, "above": above, "weak": weak},
    )


def gain_positive(e: Evidence) -> Finding:
    """The mean gain of each layer against 0."""
    layers = _self(e)
    return most_layers(
        [x.gain_ci for x in layers], [0.0] * len(layers), "gain > 0", [x.gain for x in layers]
    )


def rho_above_half(e: Evidence) -> Finding:
    """Rho of each layer against 1/2."""
    layers = _self(e)
    return most_layers(
        [x.rho_ci for x in layers], [0.5] * len(layers), "rho > 1/2", [x.rho for x in layers]
    )


def rho_beyond_nulls(e: Evidence) -> Finding:
    """Rho beyond random directions, and beyond F turned at random."""
    layers = _self(e)
    n = len(layers)
    beyond = turned = both = short = 0
    for x in layers:
        if x.nulls is None or x.rho_ci is None or x.nulls.get("matched_spectrum") is None:
            continue
        rotated = x.nulls["matched_spectrum"]["rho"]
        past = bool(x.beyond)
        beyond += past
        turned += x.rho_ci[0] > rotated
        both += past and x.rho_ci[0] > rotated
        short += x.rho_ci[1] < max(rotated, x.nulls["random_direction"]["quantiles"]["rho"][2])
    low, high = both / n, (n - short) / n
    return Finding(
        side(low, high, 0.5),
        f"beyond random directions in {beyond} of {count_text(n, 'layer')}, with the whole "
        f"interval above F turned at random in {turned}, both in {both}; below one of them in "
        f"{short}",
        both / n,
        (low, high),
        {
            "layers": n,
            "beyond_random": beyond,
            "above_matched": turned,
            "both": both,
            "below": short,
        },
    )


def gain_grows_with_gap(e: Evidence) -> Finding:
    """Spearman's correlation of gain and gap over layers."""
    found = e.trace.stacks[0].gain_against_gap
    r, ci = found["r"], found["ci"]
    if r is None or ci is None or None in ci:
        why = found.get("warning") or "too few layers"
        return Finding("undecided", f"no correlation: {why}", r)
    return Finding(
        side(ci[0], ci[1], 0.0),
        f"Spearman {r:+.2f} over {found['n']} layers",
        r,
        (ci[0], ci[1]),
        {"layers": found["n"]},
    )


def share(part: float) -> str:
    """A share in per cent; near 0 and 100 with two decimals, which never tell of those wrongly."""
    if part in (0.0, 1.0) or 0.01 <= part < 0.99:
        return f"{part:.0%}"
    return f"{min(max(part, 1e-4), 1 - 1e-4):.2%}"


def steering(e: Evidence) -> Finding:
    """Tokens other than first ones, right after the edited sub-layer of the last layer."""
    try:
        result = e.steering
    except UnreachableError as error:  # that is an answer; what to try next is of the command
        return Finding("fails", str(error).partition(";")[0])
    place = None if result.after is None else result.after.tokens["after_sublayer"]
    if result.after is None or result.spectrum is None or place is None or place[0] is None:
        return Finding("not run", "no tokens were measured after the edited sub-layer")
    found, kl = place[0], result.after.kl
    led = abs(result.spectrum.after.cos_direction)
    near = found.mean_cosine >= STEERED - 0.005
    together = found.positive_fraction == 1.0 and led > ALIGNED
    told = (
        f"mean cosine {found.mean_cosine:.3f} (least {found.min_cosine:.2f}) on held-out tokens, "
        f"{share(found.positive_fraction)} positive; cosine of u and v1 {led:.4f}"
    )
    told += "" if kl is None else f"; KL {kl:.3g} nats"
    return Finding(
        "holds" if near and together else "undecided" if near else "fails",
        told,
        found.mean_cosine,
        None,
        {"min_cosine": found.min_cosine, "cos_v1": led, "kl": kl, "strength": result.edit.strength},
    )


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "power-step",
        "a layer without its feed-forward part is one step of the power method",
        "equal tokens, with the model's own attention code; and head by head with its weights",
        _any,
        power_step,
    ),
    Claim(
        "consensus",
        "shared weights with a strict real leader: tokens reach consensus at v1",
        f"from embeddings of random tokens, radius 1; reached: mean alignment above {ALIGNED}",
        _shared_real,
        consensus,
    ),
    Claim(
        "rotation",
        "shared weights with a complex leader: tokens become one, which rotates in the plane",
        f"from embeddings of random tokens, radius 1; in the plane: alignment above {ALIGNED}",
        _shared_complex,
        rotation,
    ),
    Claim(
        "other-ends",
        "shared weights: bipartite and other divided ends exist but are rare",
        f"rare: under {RARE:.0%} of the starts",
        _shared,
        other_ends,
    ),
    Claim(
        "sizes",
        "ALBERT base and large end in span(v1, v2), xlarge and xxlarge rotate",
        "after the steps of the simulation, not after the model's own 12",
        _named,
        named_end,
    ),
    Claim(
        "gamma",
        "different layers: tokens are weakly aligned with v1, above chance",
        "chance, which decides: random directions, corrected over layers; weak, which is told: "
        "mean alignment under 1/2",
        _varying,
        gamma_above,
    ),
    Claim(
        "gain",
        "different layers: attention increases the alignment with v1",
        "one sub-layer from the real state of its depth, 64 sentences, no biases; most layers",
        _varying,
        gain_positive,
    ),
    Claim(
        "rho",
        "different layers: more than half of the tokens move closer to v1",
        "interval over prompts in each layer; most layers",
        _varying,
        rho_above_half,
    ),
    Claim(
        "rho-nulls",
        "the same, beyond what random directions and F rotated at random give",
        "random directions (corrected p < .05) and F turned at random; most layers",
        _varying,
        rho_beyond_nulls,
    ),
    Claim(
        "gap",
        "different layers: the gain grows with the spectral gap",
        "Spearman's correlation over layers",
        _varying,
        gain_grows_with_gap,
    ),
    Claim(
        "steering",
        "a rank-one term in the last layer aligns tokens near perfectly, whatever the model",
        f"a random direction, calibrated probe, strength for a mean cosine of {STEERED} on "
        "held-out text; holds where no token goes the other way; KL says what it does to the text",
        _text,
        steering,
    ),
)
"""In the order in which they are told."""
