"""`eigenlens.steer`: a direction to the top of a layer's spectrum, and what that does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from eigenlens.circuit.checkpoint import Checkpoint, open_checkpoint
from eigenlens.circuit.circuit import OVCircuit
from eigenlens.circuit.describe import describe
from eigenlens.errors import OptionError
from eigenlens.steering.directions import Direction, names_of, of_layer, says, unit
from eigenlens.steering.edit import Edit, relative_norm
from eigenlens.steering.eigenpair import alpha_qu, spectrum_change
from eigenlens.steering.leading import spectrum_warnings
from eigenlens.steering.opening import layer_index
from eigenlens.steering.options import SteerOptions, token_list, two_texts
from eigenlens.steering.probes import PROBES, Probe, Reader, at_strength, reader, scaled
from eigenlens.steering.result import Steering
from eigenlens.steering.token_directions import check_tokens, from_vocabulary, of_tokens
from eigenlens.steering.vector_files import check_vector_file, of_file

Progress = Callable[[int, int, str], None]
"""Called with (parts done, parts in all, what is done)."""


def steer(
    source: Any,
    token: str | int | Sequence[str | int] | None = None,
    *,
    direction: Any = None,
    contrast: tuple[Any, Any] | None = None,
    from_layer: int | None = None,
    layer: int = -1,
    stack: str | None = None,
    site: str = "attention",
    steps_edited: str = "last",
    probe: str | None = None,
    strength: str | float = "auto",
    target_cosine: float | None = None,
    max_kl: float = 0.5,
    calibrate: Any = None,
    evaluate: Any = None,
    sweep: bool = False,
    weights_only: bool = False,
    batch_size: int = 8,
    dtype: str = "float32",
    device: str = "cpu",
    architecture: Any = None,
    trust_remote_code: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> Steering:
    """Put a direction on top of a layer's spectrum by a rank-one edit, and measure what it does.

    The edit is ``W_O + strength u w^T``: u the unit direction, w the probe that decides how much
    of it each token receives. Nothing is changed in the model that is given; the result's `edit` is
    applied in memory (``with result.edit.applied(model)``) or saved (``result.write``).

    Parameters
    ----------
    source
        A path, hub id or ``sample:NAME``; a live transformers model; with `weights_only` also what
        `eigenlens.open_checkpoint` takes besides.
    token
        The direction of one token or of several: exactly as the vocabulary has them, a word within
        a sentence usually with its leading space.
    direction
        A vector, or a .npy, .safetensors or .gguf file with one.
    contrast
        Two files of texts (or lists of texts): the direction is the difference of their mean states
        after the edited layer.
    from_layer
        The direction is this layer's leading eigenvector.
    layer, stack
        Which self-attention layer is edited; -1 is the last one.
    site
        ``attention`` (the output projection) or ``ffn`` (the feed-forward part's output matrix,
        which has no spectrum).
    steps_edited
        Of a layer that a pass runs several times (ALBERT): its ``last`` call alone, which a saved
        checkpoint needs its layers untied for, or ``all``.
    probe
        ``calibrated`` (reads all tokens alike; the default), ``eigen`` (from the weights alone; the
        default with `weights_only`), ``direction`` (w = u) or ``placement`` (the strength is the
        eigenvalue).
    strength
        ``auto``: the largest probability of the wanted tokens with a KL of at most `max_kl`; or a
        number, in units of the mean reading ``|w.z|`` over the calibration text (``|w| = 1`` with
        `weights_only`). A negative one suppresses. Of attention it is what arrives in the residual
        stream: where the model multiplies the layer's output, W_O writes that much more.
    target_cosine
        In place of a strength: the smallest one at which the mean signed cosine right after the
        sub-layer, over tokens other than the first of each prompt, reaches this.
    max_kl
        Bound on the KL divergence from the unedited model, in nats per token.
    calibrate, evaluate
        Texts to fit the probe to, and texts to judge the edit on: a file, or a list of texts or of
        token ids; by default the two halves of the package's 64 sentences.
    sweep
        Also measure a curve over strengths, and the useful window in it.
    weights_only
        From the files alone, without torch: the edit and the spectra before and after.
    batch_size, dtype, device, architecture, trust_remote_code
        How a model is loaded and run.
    seed
        Of random tokens, for a model without a tokenizer.
    progress
        Called as parts are done.

    Raises
    ------
    EigenlensError
        The source, an option or a direction is not usable; the message says what and what to do.
    """
    options = SteerOptions(
        token=token_list(token),
        direction=direction,
        contrast=two_texts(contrast),
        from_layer=from_layer,
        layer=layer,
        stack=stack,
        site=site,
        steps_edited=steps_edited,
        probe=probe,
        strength=strength,
        target_cosine=target_cosine,
        max_kl=max_kl,
        sweep=sweep,
        weights_only=weights_only,
        batch_size=batch_size,
        seed=seed,
    )
    if isinstance(direction, (str, Path)):
        check_vector_file(Path(direction))
    if options.weights_only:
        if calibrate is not None or evaluate is not None:
            raise OptionError("texts are not read with --weights-only: leave one of the two out")
        return from_weights(open_checkpoint(source, architecture), options)
    from eigenlens.steering.live_run import run
    from eigenlens.steering.opening import open_subject
    from eigenlens.steering.texts import check_sources

    check_sources(calibrate, evaluate, *(options.contrast or ()))

    def before(tokenizer: Any, checkpoint: Checkpoint) -> None:
        if options.token:
            check_tokens(options.token, tokenizer, checkpoint)

    subject = open_subject(
        source,
        dtype=dtype,
        device=device,
        architecture=architecture,
        trust_remote_code=trust_remote_code,
        before=before,
        needs_head=options.needs_head,
    )
    return run(subject, options, calibrate, evaluate, progress)


def from_weights(checkpoint: Checkpoint, options: SteerOptions) -> Steering:
    """The edit from the files alone, and the spectra before and after.

    Raises
    ------
    OptionError
        No such layer, or the direction cannot be made without text.
    """
    circuit = _circuit(checkpoint, options)
    found = direction_without_text(
        checkpoint, options, circuit.stack, circuit.d_model, circuit.layer
    )
    layer = reader(circuit)
    made = make_probe(layer, found.vector, options.probe_name, None)
    strength = float(options.strength)
    edit = make_edit(
        checkpoint,
        circuit,
        options,
        found,
        at_strength(layer, found.vector, made, options.probe_name, strength),
        strength,
    )
    change = spectrum_change(circuit, edit)
    return Steering(
        model=describe(checkpoint),
        options=options.record(),
        edit=edit,
        direction=found,
        says=says(checkpoint, found.vector),
        calls=circuit.steps,
        alpha_qu=alpha_qu(circuit, edit),
        relative_norm=relative_norm(
            edit.dW_norm, float(np.linalg.norm(np.asarray(circuit.W_O, dtype=np.float64)))
        ),
        realised=None,
        spectrum=change,
        before=None,
        after=None,
        warnings=(*found.warnings, *spectrum_warnings(circuit, edit, change)),
        checkpoint=checkpoint,
    )


def _circuit(checkpoint: Checkpoint, options: SteerOptions) -> OVCircuit:
    """The layer that is edited."""
    circuits = checkpoint.circuits(stack=options.stack)
    items = [(item, i) for i, item in enumerate(circuits.items) if item.kind == "self"]
    if not items:
        raise OptionError(f"{checkpoint.source_label} has no self-attention layer to edit")
    name = items[-1][0].stack
    items = [(item, i) for item, i in items if item.stack == name]
    at = layer_index([item.layer for item, _ in items], options.layer, checkpoint.source_label)
    return circuits[items[at][1]]


def direction_without_text(
    checkpoint: Checkpoint, options: SteerOptions, stack: str, d: int, layer: int
) -> Direction:
    """A direction that the files alone give: a token's, a file's, a vector, another layer's."""
    if options.token:
        ids = from_vocabulary(checkpoint, options.token)
        return of_tokens(checkpoint.readout, ids, names_of(None, checkpoint), d)
    if options.from_layer is not None:
        return of_layer(checkpoint, stack, options.from_layer, d)
    return given_vector(options, d, layer)


def given_vector(options: SteerOptions, d: int, layer: int) -> Direction:
    """The vector of a file, or one that was passed."""
    if isinstance(options.direction, (str, Path)):
        return of_file(options.direction, d, layer)
    vector = unit(options.direction, d, "the vector")
    return Direction(vector, "a vector", "file", "as given")


def make_probe(
    layer: Reader, u: Float[np.ndarray, "d"], name: str, Z: Float[np.ndarray, "n m"] | None
) -> Probe:
    """A probe in its unit; placement keeps its own, since its strength is the eigenvalue."""
    from eigenlens.steering.moments import moments_of

    found = PROBES[name](layer, u, None if Z is None else moments_of(Z))
    return found if name == "placement" else scaled(found, Z)


def make_edit(
    checkpoint: Checkpoint,
    circuit: OVCircuit,
    options: SteerOptions,
    found: Direction,
    made: Probe,
    strength: float,
) -> Edit:
    """The edit as an object that can be applied and saved."""
    return Edit(
        model=checkpoint.source_label,
        model_type=checkpoint.model_type or "",
        stack=circuit.stack,
        layer=circuit.layer,
        kind=circuit.kind,
        site=options.site,
        steps=options.steps_edited if circuit.steps > 1 else "all",
        probe=options.probe_name,
        direction=found.vector,
        written=made.written,
        w=made.w,
        strength=strength,
        label=found.label,
    )
