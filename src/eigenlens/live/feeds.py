"""Inputs that make a transformers model run: tokens, pixels, sound, by its signature and config."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

# What a model may raise on inputs that it cannot take; another way of feeding it is tried then.
REFUSALS = (
    TypeError,
    ValueError,
    RuntimeError,
    KeyError,
    IndexError,
    AttributeError,
    NotImplementedError,
    AssertionError,
    NameError,
)
# Whoever knows one of these takes an image as patches; how they are shaped differs.
GRIDS = frozenset(("grid_thw", "image_grid_thw", "grid_hws", "spatial_shapes"))
WITH_PATCHES = (*sorted(GRIDS), "pixel_attention_mask", "merge_sizes")
PATCH_SHAPES = 5
SOUND = 4000  # samples of raw sound; more where the strides of the convolutions ask for more

Inputs = Mapping[str, Any]


def feeds(torch: Any, model: Any, n: int, rng: np.random.Generator) -> Iterator[Inputs]:
    """Keyword arguments for a model's forward pass, the likeliest first.

    Parameters
    ----------
    torch
        The module.
    model
        A transformers model.
    n
        Tokens of a text.
    rng
        For ids and values.
    """
    known = inspect.signature(model.forward).parameters
    maker = _Maker(torch, model, n, rng, frozenset(known))
    names = [name for name in MAKERS if name in known]
    main = getattr(model, "main_input_name", "input_ids")
    choices = [
        [name for name in names if name == main or name in COMPANIONS.get(main, ())],
        names,
        *([name, *(c for c in names if c in COMPANIONS.get(name, ()))] for name in names),
        *(list(choice) for choice in EMBEDDED if known.keys() >= set(choice)),
    ]
    tried: set[tuple[str, ...]] = set()
    for choice in choices:
        key = tuple(choice)
        if not choice or key in tried:
            continue
        tried.add(key)
        for shape in range(PATCH_SHAPES if maker.is_grid else 1):
            maker.shape = shape
            try:
                made = {name: {**MAKERS, **LAST}[name](maker) for name in choice}
            except REFUSALS:
                continue
            if "use_cache" in known:
                made["use_cache"] = False
            yield made


class _Maker:
    def __init__(
        self, torch: Any, model: Any, n: int, rng: np.random.Generator, known: frozenset[str]
    ) -> None:
        self.torch, self.n, self.rng = torch, n, rng
        self.is_grid = "input_ids" not in known and not known.isdisjoint(GRIDS)
        self.shape = 0
        self.config = model.config
        first = next(model.parameters())
        self.dtype, self.device = first.dtype, first.device

    def key(self, *names: str, parts: tuple[str, ...] = ()) -> Any:
        """The first of the names that the config, or one of its sections, has."""
        places = [self.config, *(getattr(self.config, p, None) for p in parts)]
        for place in places:
            for name in names:
                found = getattr(place, name, None)
                if found is not None:
                    return found
        raise KeyError(names[0])

    def tokens(self) -> Any:
        """(1, n) ids without padding or special placeholders of images and sound."""
        text = self.config.get_text_config()
        size = int(getattr(text, "vocab_size", None) or self.key("vocab_size"))
        avoid = {
            value
            for place in (self.config, text)
            for name, value in vars(place).items()
            if name.endswith(("token_id", "token_index")) and isinstance(value, int)
        }
        ids = [i for i in range(min(size, 1000)) if i not in avoid] or list(range(min(size, 1000)))
        chosen = self.rng.choice(ids, size=(1, self.n))
        return self.torch.tensor(chosen, device=self.device)

    def ones(self) -> Any:
        """(1, n) of ones."""
        return self.torch.ones(1, self.n, dtype=self.torch.long, device=self.device)

    def normal(self, *shape: int) -> Any:
        """Normal numbers in the model's dtype."""
        numbers = self.rng.standard_normal(shape)
        return self.torch.tensor(numbers, dtype=self.dtype, device=self.device)

    def patches(self) -> Any:
        """16 patches of an image, a row each: the ways in which models take a grid of them."""
        side = self.key("patch_size", "spatial_patch_size")
        side = side if isinstance(side, int) else side[0]
        steps = getattr(self.config, "temporal_patch_size", None) or 1
        channels = self.key("num_channels", "in_channels", "in_chans")
        rows = self.normal(16, channels * steps * side * side)
        apart = rows.reshape(16, channels, -1, side, side)
        return (rows, rows[None], apart, apart[:, :, 0], apart[None, :, :, 0])[self.shape]

    def grid(self, *sizes: int) -> Any:
        """Sizes of the grid of patches, one image."""
        return self.torch.tensor([sizes], device=self.device)

    def states(self, *names: str) -> Any:
        """(1, n, width) of hidden states."""
        if self.is_grid:
            return self.patches()
        return self.normal(1, self.n, self.key(*names))

    def pixels(self) -> Any:
        """(1, channels, height, width), or patches."""
        if self.is_grid:
            return self.patches()
        parts = ("vision_config", "backbone_config")
        size = self.key("image_size", parts=parts)
        height, width = (size, size) if isinstance(size, int) else size
        try:
            channels = self.key("num_channels", "in_channels", "in_chans", parts=parts)
        except KeyError:
            channels = 3
        return self.normal(1, channels, height, width)

    def features(self) -> Any:
        """(1, mels, frames), as Whisper takes them, or (1, frames, width) where that is stated."""
        width = getattr(self.config, "feature_projection_input_dim", None)
        if width:
            return self.normal(1, 40, width)
        parts = ("audio_config", "encoder")
        mels = self.key("num_mel_bins", parts=parts)
        return self.normal(1, mels, 2 * self.key("max_source_positions", parts=parts))

    def sound(self) -> Any:
        """(1, samples) of raw sound, (1, channels, samples) for a codec, or (1, frames, mels).

        The last where the config has a length in frames.
        """
        mels = getattr(self.config, "num_mel_bins", None)
        if mels and hasattr(self.config, "max_length") and hasattr(self.config, "patch_size"):
            return self.normal(1, self.config.max_length, mels)
        channels = getattr(self.config, "audio_channels", None)
        if channels:
            return self.normal(1, channels, SOUND)
        strides = getattr(self.config, "conv_stride", None) or (1,)
        return self.normal(1, max(SOUND, 12 * prod(strides)))


MAKERS: Mapping[str, Callable[[_Maker], Any]] = {
    "input_ids": _Maker.tokens,
    "attention_mask": _Maker.ones,
    "decoder_input_ids": _Maker.tokens,
    "pixel_values": _Maker.pixels,
    "input_features": _Maker.features,
    "input_values": _Maker.sound,
    "hidden_states": lambda maker: maker.states("hidden_size", "d_model"),
    "query_embeds": lambda maker: maker.states("hidden_size"),
    "encoder_hidden_states": lambda maker: maker.states("encoder_hidden_size", "hidden_size"),
    "grid_thw": lambda maker: maker.grid(1, 4, 4),
    "image_grid_thw": lambda maker: maker.grid(1, 4, 4),
    "grid_hws": lambda maker: maker.grid(4, 4),
    "spatial_shapes": lambda maker: maker.grid(4, 4),
    "pixel_attention_mask": lambda maker: maker.grid(*[1] * 16),
    "merge_sizes": lambda maker: maker.grid(1)[0],
}
# States in place of ids: what takes both takes only one at a time.
LAST: Mapping[str, Callable[[_Maker], Any]] = {
    "inputs_embeds": lambda maker: maker.states("hidden_size", "d_model"),
}
EMBEDDED = (("inputs_embeds",), ("inputs_embeds", "decoder_input_ids"))
COMPANIONS: Mapping[str, tuple[str, ...]] = {
    "input_ids": ("attention_mask", "decoder_input_ids"),
    "input_features": ("decoder_input_ids",),
    "input_values": ("decoder_input_ids",),
    "pixel_values": ("decoder_input_ids", *WITH_PATCHES),
    "hidden_states": WITH_PATCHES,
    "query_embeds": ("encoder_hidden_states",),
}
