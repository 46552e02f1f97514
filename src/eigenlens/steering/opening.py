"""A model to be steered: running with the head that it was trained with, where it has one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from eigenlens.blas import SMALL
from eigenlens.circuit.adapters import merge_adapters
from eigenlens.circuit.checkpoint import Checkpoint, open_checkpoint
from eigenlens.errors import ArchitectureError, OptionError, SourceError
from eigenlens.inert import inert
from eigenlens.live.gguf_once import gguf_once
from eigenlens.live.load import load_model
from eigenlens.live.places import Place
from eigenlens.live.session import Session, open_session, session_of
from eigenlens.live.threads import one_if
from eigenlens.live.tokenizer import Tokenizer, load_tokenizer
from eigenlens.tensors.source import Source, resolve

Head = Literal["causal", "masked"]
NO_HEAD = "has no output head"
Before = Callable[[Tokenizer | None, Checkpoint], None]


@dataclass(frozen=True)
class Subject:
    """The running model, and what it can tell.

    Attributes
    ----------
    session
        The model with its circuits, places and tokenizer.
    head
        `causal`: it predicts the next token; `masked`: a token at each place; None: it has no
        output head, so only directions of states can be measured.
    warnings
        What must be told with the result.
    """

    session: Session = field(repr=False)
    head: Head | None
    warnings: tuple[str, ...] = ()


def has_head(checkpoint: Checkpoint) -> bool:
    """Whether the files hold an output head over the vocabulary, by tensor names alone."""
    try:
        readout = checkpoint.readout
    except OptionError:  # no token embedding
        return False
    if readout.row.head_dense:
        return f"{readout.row.head_dense}.weight" in readout.store.names()
    return "unembedding" in readout.roles


def no_predictions(label: str, both: bool = False) -> OptionError:
    """What is said where a strength is left to a KL, and there are no predictions to take it of."""
    why = "is an encoder-decoder, of which only states are measured" if both else NO_HEAD
    return OptionError(
        f"{inert(label)} {why}, so that no KL bounds the strength: give --strength or "
        "--target-cosine"
    )


def open_subject(
    source: Any,
    *,
    dtype: Any = "float32",
    device: str = "cpu",
    architecture: Any = None,
    trust_remote_code: bool = False,
    before: Before | None = None,
    needs_head: bool = False,
) -> Subject:
    """Load a model with its head, or take a live one as it is.

    Parameters
    ----------
    source
        A path, hub id or ``sample:NAME``; a live transformers model; a `Session`; or a `Subject`.
    dtype, device, architecture, trust_remote_code
        See `eigenlens.live.session.open_session`; not used for a live model.
    before
        Called once tokenizer and files are open, before the model's weights are loaded: what it
        raises costs nobody the load. Not called for what is in memory already.
    needs_head
        Refuse files without predictions to measure, by their headers alone: before the tokenizer
        and the weights are loaded.

    Raises
    ------
    SourceError, OptionError, MissingDependencyError
        See `eigenlens.live.load.load_model`; `needs_head`, and there is none.
    ArchitectureError
        The model has no attention layer that can be read.
    """
    if isinstance(source, Subject):
        return source
    if isinstance(source, Session):
        return _subject(source)
    if not isinstance(source, (str, Path, Source)):
        live = merge_adapters(source) if hasattr(source, "state_dict") else source
        return _subject(open_session(live, architecture=architecture))
    found = source if isinstance(source, Source) else resolve(source)
    with gguf_once(found.format == "gguf"):
        checkpoint = open_checkpoint(found, architecture)
        both = bool(found.config.get("is_encoder_decoder"))
        headless = both or not has_head(checkpoint)
        if headless and needs_head:
            raise no_predictions(checkpoint.source_label, both)
        tokenizer, notes = _tokenizer(found, trust_remote_code)
        if before is not None:
            before(tokenizer, checkpoint)
        if headless:
            session = open_session(
                found,
                dtype=dtype,
                device=device,
                architecture=architecture,
                trust_remote_code=trust_remote_code,
                tokenizer=False,
            )
            session = _with_tokenizer(session, tokenizer, notes)
            why = (
                "of an encoder-decoder only the states are measured"
                if both
                else "its files hold no output head"
            )
            note = f"{session.label}: {why}: the effect on its predictions is not measured"
            return replace(_subject(session), head=None, warnings=(*session.warnings, note))
        model = load_model(
            found, dtype, head=True, device=device, trust_remote_code=trust_remote_code
        )
        session = session_of(model, found, architecture=architecture)
        return _subject(_with_tokenizer(session, tokenizer, notes))


def _tokenizer(source: Source, trust_remote_code: bool) -> tuple[Tokenizer | None, tuple[str, ...]]:
    """The tokenizer, or why there is none."""
    try:
        return load_tokenizer(source, trust_remote_code=trust_remote_code), ()
    except SourceError as error:
        return None, (str(error),)


def _with_tokenizer(
    session: Session, tokenizer: Tokenizer | None, notes: tuple[str, ...]
) -> Session:
    """The same session; one that sees images reads no text."""
    return session if session.vision else replace(session, tokenizer=tokenizer, warnings=notes)


def _subject(session: Session) -> Subject:
    get = getattr(session.model, "get_output_embeddings", None)
    if not callable(get) or get() is None:
        note = f"{session.label} has no output head: its predictions are not measured"
        return Subject(session, None, (*session.warnings, note))
    # An encoder-decoder reads the text itself: what it says next is no matter of perplexity.
    own = [p for p in session.places if p.plan.kind == "self"]
    causal = all(p.plan.causal for p in own) and not session.body.config.is_encoder_decoder
    return Subject(session, "causal" if causal else "masked", session.warnings)


def place_of(session: Session, layer: int, stack: str | None = None) -> Place:
    """The self-attention layer that is edited; a negative number counts from the last.

    Raises
    ------
    OptionError
        There is no such stack or layer.
    ArchitectureError
        The model has no self-attention layer.
    """
    chosen = session if stack is None else session.only(stack)
    own = [p for p in chosen.places if p.plan.kind == "self"]
    if not own:
        raise ArchitectureError(f"{session.label} has no self-attention layer to edit")
    # Of an encoder-decoder the last stack writes what is read out.
    name = own[-1].plan.stack
    own = [p for p in own if p.plan.stack == name]
    return own[layer_index([p.plan.layer for p in own], layer, session.label)]


def layer_index(known: list[int], layer: int, label: str) -> int:
    """Where a layer stands among those that can be edited.

    Raises
    ------
    OptionError
        It is not there.
    """
    if layer < 0 and -layer <= len(known):
        return len(known) + layer
    if layer in known:
        return known.index(layer)
    raise OptionError(
        f"{inert(label)} has no layer {layer} to edit: layers are {known[0]} to {known[-1]}, or "
        "-1 for the last"
    )


def quick(session: Session) -> AbstractContextManager[None]:
    """One thread for narrow models on a CPU."""
    return one_if(session.places[0].plan.geometry.d_model <= SMALL, session)
