"""Inputs of image and video encoders that no generic ones fit; `zoo` takes them."""

from __future__ import annotations

from typing import Any

IMAGE = 32


def _noise(*shape: int) -> Any:
    import torch

    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def given(name: str, *shape: int, **more: Any) -> Any:
    """Normal numbers of a shape under a name, and other arguments as they are."""

    def made(model: Any, n: int) -> dict[str, Any]:
        import torch

        return {name: _noise(*shape), **{k: torch.tensor(v) for k, v in more.items()}}

    return made


def _flattened(model: Any, n: int) -> dict[str, Any]:
    """Pix2Struct: patches whose first two numbers say where they are, counted from 1."""
    import torch

    config = getattr(model.config, "vision_config", model.config)
    rows = _noise(1, 4, 2 + config.patch_embed_hidden_size)
    rows[..., 0], rows[..., 1] = 1, torch.arange(1, 5)
    text = {} if config is model.config else {"decoder_input_ids": torch.arange(n)[None] + 8}
    return {"flattened_patches": rows, **text}


def _prompted(model: Any, n: int) -> dict[str, Any]:
    """SegGPT: an image, an example and its mask, each half of what the model sees."""
    height, width = model.config.image_size
    image = _noise(1, 3, height // 2, width)
    return {"pixel_values": image, "prompt_pixel_values": image, "prompt_masks": image}


def _every_position(model: Any, n: int) -> dict[str, Any]:
    """Molmo 2: as many patches as there are positions, which are always all added."""
    config = model.config
    side = config.patch_size
    return {"pixel_values": _noise(1, model.positional_embedding.shape[0], 3 * side * side)}


def _tiles(model: Any, n: int) -> dict[str, Any]:
    """Llama 3.2 Vision: one image, cut in as many tiles as it may be."""
    import torch

    config = model.config
    size, tiles = config.image_size, config.max_num_tiles
    return {
        "pixel_values": _noise(1, 1, tiles, 3, size, size),
        "aspect_ratio_ids": torch.ones(1, 1, dtype=torch.long),
        "aspect_ratio_mask": torch.ones(1, 1, tiles, dtype=torch.long),
    }


def _seen(model: Any, n: int) -> dict[str, Any]:
    """IDEFICS: text and an image that every token looks at."""
    import torch

    return {
        "input_ids": torch.arange(n)[None] + 8,
        "pixel_values": _noise(1, 1, 3, IMAGE, IMAGE),
        "image_attention_mask": torch.ones(1, n, 1, dtype=torch.long),
    }


def _books(model: Any, n: int) -> dict[str, Any]:
    """Bark's last model: ids of every codebook."""
    import torch

    books = model.config.n_codes_total
    return {"codebook_idx": 1, "input_ids": (torch.arange(n * books) % 30).reshape(1, n, books)}


_FOUR = [[4, 4]]
_GRID = [[1, 4, 4]]
INPUTS: dict[str, Any] = {
    "bridgetower_vision_model": given("image", 1, 3, IMAGE, IMAGE),
    "d_fine": given("pixel_values", 1, 3, 64, 64),
    "dab-detr": given("pixel_values", 1, 3, IMAGE, IMAGE),
    "fine_acoustics": _books,
    "florence_vision": given("hidden_states", 1, 3, IMAGE, IMAGE),
    "idefics": _seen,
    "idefics2_perceiver": given("context", 1, 6, 32, attention_mask=[[1] * 6]),
    "kimi_k25_vision": given("pixel_values", 16, 3, 8, 8, grid_thw=_GRID),
    **dict.fromkeys(
        ("minicpm_ocr_vision", "minicpmv4_6_vision", "minicpmv4_7_vision"),
        given("pixel_values", 1, 3, 8, 128, target_sizes=_FOUR),
    ),
    "mllama_vision_model": _tiles,
    "molmo2_vision": _every_position,
    "muse_glimmer_vision": given("pixel_values", 16, 384, grid_thw=_GRID),
    "muse_spark_vision": given("pixel_values", 16, 384, grid_thw=_GRID),
    **dict.fromkeys(("pix2struct", "pix2struct_vision_model"), _flattened),
    "seggpt": _prompted,
    "xclip_vision_model": given("pixel_values", 8, 3, IMAGE, IMAGE),
}
