"""A live model with its circuits, places and tokenizer: what every trace and simulation runs on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from eigenlens.circuit.adapters import merge_adapters
from eigenlens.circuit.checkpoint import Checkpoint, open_checkpoint
from eigenlens.circuit.circuit import OVCircuit
from eigenlens.errors import ArchitectureError, OptionError, SourceError
from eigenlens.inert import inert
from eigenlens.live.gguf_once import gguf_once
from eigenlens.live.load import line, load_model, need_transformers, split_adapter
from eigenlens.live.modes import evaluating
from eigenlens.live.places import Key, Place, find_places
from eigenlens.live.precision import keep_double
from eigenlens.live.steadiness import changes
from eigenlens.live.tokenizer import Split, Tokenizer, folder_of, load_tokenizer
from eigenlens.tensors.source import Source, resolve


@dataclass(frozen=True)
class Constants:
    """What one layer's circuit adds to its attention, as tensors of the model.

    Attributes
    ----------
    bias
        `b = W_O b_V + b_O`, (d,): what every token receives whatever the attention.
    scale
        Factor on the attention output before the residual sum: a number, or (d,).
    """

    bias: Any
    scale: Any


@dataclass(frozen=True)
class Session:
    """A running model, ready to be traced.

    Attributes
    ----------
    label
        What the user said, for display.
    model
        The live model, as it was given or loaded.
    checkpoint
        Whose circuits are measured (the files; for a live model, its own weights).
    live
        The running model opened as a checkpoint: the names of its modules.
    places
        Where each layer's states are read, in natural order.
    tokenizer
        Text to ids; None where only ids can be given.
    warnings
        What must be told with every result.
    """

    label: str
    model: Any = field(repr=False)
    checkpoint: Checkpoint = field(repr=False)
    live: Checkpoint = field(repr=False)
    places: tuple[Place, ...] = field(repr=False)
    tokenizer: Tokenizer | None = field(default=None, repr=False)
    warnings: tuple[str, ...] = ()

    @property
    def torch(self) -> Any:
        """The module torch."""
        return need_transformers()[0]

    @property
    def body(self) -> Any:
        """The model without its head: no logits are computed."""
        return self.model.base_model

    @property
    def device(self) -> Any:
        """Where token ids go."""
        return self.body.device

    @property
    def dtype(self) -> Any:
        """The dtype of the weights."""
        return self.body.dtype

    @property
    def vision(self) -> bool:
        """Whether the model sees pixels instead of token ids."""
        return str(self.body.main_input_name) == "pixel_values"

    @cached_property
    def circuits(self) -> Mapping[Key, int]:
        """Index into `checkpoint.circuits()` of each layer."""
        plans = self.checkpoint.plans
        return {(p.stack, p.layer, p.kind): i for i, p in enumerate(plans)}

    def circuit(self, place: Place) -> OVCircuit:
        """The circuit of a layer, read from the checkpoint."""
        return self.checkpoint.circuits()[self.circuits[place.key]]

    @cached_property
    def _constants(self) -> dict[Key, Constants]:
        return {}

    def constants(self, place: Place) -> Constants:
        """Affine part and output scale of a layer; read once and kept."""
        if place.key not in self._constants:
            self.remember(place, self.circuit(place))
        return self._constants[place.key]

    @cached_property
    def checked(self) -> set[tuple[Any, ...]]:
        """Each `weights_state` of which it is known that the model applies every circuit's F."""
        return set()

    def weights_state(self) -> tuple[Any, ...]:
        """What tells the projections' weights as they are now from others.

        The memory and the write counter of each tensor, which every change in place raises.
        """
        tensors = [t for place in self.places for m in (place.value, place.output) for t in _own(m)]
        return tuple((t.data_ptr(), changes(t)) for t in tensors)

    @cached_property
    def memory(self) -> dict[Any, Any]:
        """What earlier passes found out about the model, for those who run the next ones."""
        return {}

    def remember(self, place: Place, circuit: OVCircuit) -> None:
        """Keep the constants of a circuit that was just read."""
        like = next(place.output.parameters())
        scale: Any = circuit.output_scale
        if np.ndim(scale):
            scale = self._tensor(np.asarray(scale), like)
        self._constants[place.key] = Constants(self._tensor(circuit.bias, like), scale)

    def _tensor(self, array: Any, like: Any) -> Any:
        device = self.device if like.device.type == "meta" else like.device
        wide = np.array(array, dtype=np.float64)
        return self.torch.as_tensor(wide).to(device=device, dtype=like.dtype)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of texts.

        Raises
        ------
        SourceError
            If there is no tokenizer.
        OptionError
            If there is no text, or too many tokens are unknown.
        """
        if self.tokenizer is None:
            why = next((w for w in self.warnings if "token" in w), "")
            raise SourceError(why or f"{self.label} has no tokenizer: give token ids")
        return self.tokenizer.encode_all(texts)

    @contextmanager
    def running(self, advice: str = "") -> Iterator[None]:
        """Evaluation without gradients; float64 stays float64; running out of memory is explained.

        Raises
        ------
        OptionError
            When memory runs out, with `advice`.
        """
        torch = self.torch
        try:
            with evaluating(self.model), torch.no_grad(), keep_double(self.dtype):
                yield
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(torch, error):
                raise
            raise OptionError(
                f"{self.label}: memory of {self.device} ran out"
                f"{f' with {advice}' if advice else ''}: use a smaller batch size, shorter "
                "prompts, or a narrower dtype"
            ) from error

    def forward(self, inputs: Mapping[str, Any], advice: str = "", *, weights: bool = False) -> Any:
        """One pass through the body, without a cache; `weights` asks for attention weights.

        Raises
        ------
        OptionError
            When memory runs out.
        ArchitectureError
            If the model cannot run on these inputs.
        """
        wanted = {"use_cache": False} | ({"output_attentions": True} if weights else {})
        options = {name: on for name, on in wanted.items() if self.accepts(name)}
        try:
            with self.running(advice):
                return self.body(**{**options, **inputs})
        except (TypeError, ValueError, IndexError, KeyError, AttributeError, RuntimeError) as error:
            raise ArchitectureError(
                f"{self.label}: a forward pass on {', '.join(inputs)} failed: {line(error)}"
            ) from error

    def only(self, *stacks: str) -> Session:
        """The session with some stacks alone: of a composite model, those that a prompt reaches.

        Raises
        ------
        OptionError
            If there is no such stack.
        """
        known = list(dict.fromkeys(place.plan.stack for place in self.places))
        for stack in stacks:
            if stack not in known:
                raise OptionError(
                    f"{self.label} has no stack '{inert(stack)}': it has {', '.join(known)}"
                )
        return replace(self, places=tuple(p for p in self.places if p.plan.stack in stacks))

    def accepts(self, name: str) -> bool:
        """Whether the body's forward has a parameter of this name."""
        return name in self._parameters

    @cached_property
    def _parameters(self) -> frozenset[str]:
        import inspect

        return frozenset(inspect.signature(self.body.forward).parameters)

    def need_eager(self) -> None:
        """Attention weights are only returned by eager attention.

        Raises
        ------
        OptionError
            With the remedy, for a live model that was loaded otherwise.
        """
        found = getattr(self.model.config, "_attn_implementation", "eager")
        if found != "eager":
            raise OptionError(
                f"{self.label}: attention runs as {found}, which returns no weights: call "
                "model.set_attn_implementation('eager') first, or pass the path of the model"
            )


def _own(module: Any) -> list[Any]:
    return [*module.parameters(), *module.buffers()]


def open_session(
    source: Any,
    *,
    dtype: Any = "float32",
    device: str = "cpu",
    device_map: Any = None,
    adapter: str | Path | None = None,
    trust_remote_code: bool = False,
    architecture: Any = None,
    split: Split | None = None,
    tokenizer: bool = True,
) -> Session:
    """Load a model to be traced, or take a live one, or a session, as it is.

    Parameters
    ----------
    source
        What `load_model` takes; or a live `PreTrainedModel` or PEFT model, whose device, dtype and
        weights stay what they are; or a session, which is given back: no option is used.
    dtype, device, device_map, adapter, trust_remote_code
        See `load_model`; not used for a live model.
    architecture
        See `open_checkpoint`.
    split
        See `load_tokenizer`.
    tokenizer
        Whether to load one (a GGUF file's takes seconds).

    Raises
    ------
    SourceError, OptionError, MissingDependencyError
        See `load_model`.
    ArchitectureError
        If the model has no attention layer that can be read.
    """
    if isinstance(source, Session):
        return source
    need_transformers()
    with ExitStack() as once:
        given: Source | None = None
        if hasattr(source, "state_dict") and hasattr(source, "config"):
            model = merge_adapters(source)
            folder = folder_of(model)
            if tokenizer and folder is not None and (folder / "config.json").is_file():
                given = resolve(folder)
        elif isinstance(source, (str, Path, Source)):
            if not isinstance(source, Source):
                source, adapter = split_adapter(source, adapter)
            given = source if isinstance(source, Source) else resolve(source)
            once.enter_context(gguf_once(given.format == "gguf"))
            model = load_model(
                given,
                dtype,
                device=device,
                device_map=device_map,
                adapter=adapter,
                trust_remote_code=trust_remote_code,
            )
        else:
            raise SourceError(
                f"a {type(source).__name__} has no model to run: give a path, hub id, sample:NAME "
                "or a live transformers model"
            )
        files = given if isinstance(source, (str, Path, Source)) and adapter is None else None
        session = session_of(model, files, architecture=architecture)
        if not tokenizer or session.vision:
            return session
        if given is None:
            why = f"{session.label} has no tokenizer: give token ids"
            return replace(session, warnings=(why,))
        try:
            found = load_tokenizer(given, split, trust_remote_code=trust_remote_code)
        except SourceError as error:
            return replace(session, warnings=(str(error),))
        return replace(session, tokenizer=found)


def session_of(model: Any, source: Any = None, *, architecture: Any = None) -> Session:
    """A session of a live model; its circuits are those of `source`, or its own.

    Raises
    ------
    ArchitectureError
        If the running model has not the layers of the source.
    """
    live = open_checkpoint(model, architecture)
    checkpoint = live if source is None else open_checkpoint(source, architecture)
    places = find_places(model, live)
    there = {p.key for p in places}
    read = {(p.stack, p.layer, p.kind) for p in checkpoint.plans}
    if there != read:
        stack, layer, kind = min(there ^ read)
        raise ArchitectureError(
            f"{checkpoint.source_label}: {stack} layer {layer} ({kind}) is only in "
            f"{'the running model' if (stack, layer, kind) in there else 'the files'}: it is not "
            "the model of these weights"
        )
    return Session(checkpoint.source_label, model, checkpoint, live, tuple(places))


_UNTRAINED = 0x756E7472  # sets this draw apart from others of the same seed
_drawing = Lock()


def initialised_like(session: Session, seed: int = 0) -> Session:
    """The same architecture with the weights it starts training from: the `random_init` null.

    The global random state of torch is put back afterwards. The draw is not the one that
    ``torch.manual_seed(seed)`` gives, which a model that has not been trained may well hold.
    """
    torch, _ = need_transformers()
    body = session.body
    own = int(np.random.SeedSequence([seed, _UNTRAINED]).generate_state(1)[0])
    # All threads draw from the CPU's one generator, whatever the default device is; those of other
    # devices are left alone.
    with _drawing, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(own)
        with torch.device("cpu"):
            model = type(body)._from_config(body.config, attn_implementation="eager")
    model = model.to(device=session.device, dtype=session.dtype).eval()
    fresh = session_of(model, architecture=session.checkpoint.rules)
    return replace(fresh, label=f"{session.label} (initialised)", tokenizer=session.tokenizer)


def out_of_memory(torch: Any, error: BaseException) -> bool:
    """Whether an error means that memory ran out, on any device."""
    kinds = (MemoryError, getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError))
    text = str(error).lower()
    words = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, kinds) or any(word in text for word in words)
