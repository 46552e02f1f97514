"""What is built and how it is trained: one recipe a bundled model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import transformers

from training.tokens import CLS, PAD, SEP, VOCAB

LENGTH = 128  # tokens in a window, and positions in a model


@dataclass(frozen=True)
class Recipe:
    """What to build and how to train it.

    Attributes
    ----------
    model
        Name of the class in transformers; a name that ends in ``MaskedLM`` makes it masked.
    config
        Settings of its config, beside vocabulary and special tokens.
    steps, batch, lr, seed
        Length of the training, windows in a batch, peak learning rate, default seed.
    stages
        ``(until this share of the training, layers in use, causal)``, for a masked model; full
        depth and masked language modelling where it is empty.
    note
        A sentence for the card.
    """

    model: str
    config: dict[str, Any]
    steps: int
    lr: float
    batch: int = 16
    seed: int = 0
    stages: tuple[tuple[float, int, bool], ...] = ()
    note: str = ""

    @property
    def masked(self) -> bool:
        """Whether tokens are hidden and guessed from both sides."""
        return self.model.endswith("MaskedLM")

    @property
    def depth(self) -> int:
        """Layers of the finished model (of an ALBERT: how often its layer is applied)."""
        names = ("num_hidden_layers", "n_layer", "num_layers")
        return next(int(self.config[name]) for name in names if name in self.config)

    def build(self, ids: dict[str, int]) -> Any:
        """Make the untrained model; ``ids`` are those of the special tokens."""
        kind = getattr(transformers, self.model)
        special = {"bos_token_id": ids.get(CLS, 0), "eos_token_id": ids.get(SEP, 0)}
        if self.masked:
            special["pad_token_id"] = ids[PAD]
        return kind(kind.config_class(**self.config, **special, vocab_size=VOCAB))


ALBERT = {
    "embedding_size": 128,
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "max_position_embeddings": LENGTH,
    "hidden_act": "gelu_pytorch_tanh",
    "initializer_range": 0.05,
}
BERT = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": LENGTH,
    "hidden_act": "gelu_pytorch_tanh",
    "initializer_range": 0.05,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
GPT2 = {
    "n_embd": 128,
    "n_inner": 384,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": LENGTH,
    "activation_function": "gelu_pytorch_tanh",
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
GPTNEO = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_layers": 4,
    "num_heads": 4,
    "attention_types": [[["global", "local"], 2]],
    "window_size": 32,
    "max_position_embeddings": LENGTH,
    "activation_function": "gelu_pytorch_tanh",
}
LLAMA = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
    "tie_word_embeddings": True,
}
WARM = ((0.15, 4, True), (1.0, 4, False))
GROWING = ((0.175, 2, True), (0.45, 2, False), (0.68, 4, False), (0.86, 6, False), (1.0, 12, False))
SOONER = ((0.25, 2, True), (0.5, 2, False), (0.7, 4, False), (0.86, 6, False), (1.0, 12, False))
ROTATING = (
    "Chosen for a complex leading eigenvalue: seeds 1, 2 and 3 were trained in full and compared "
    "(seed 1: real, 0.5620, gap 0.015; seed 2: 0.6108 ± 0.0193i, gap 0.020; seed 3: 0.5620 ± "
    "0.0377i, gap 0.004). Seed 2 was kept: the only one whose leader is complex and at least 1 % "
    "ahead; below that is a tie. Later the longer recipe of albert-tiny was tried "
    "with seed 1: its loss is 4.650, but its leader, 0.3708 ± 0.0285i, is 0.9 % ahead, a tie."
)
RECIPES = {
    "albert-tiny": Recipe("AlbertForMaskedLM", ALBERT, 3800, 2e-3, stages=GROWING),
    "albert-tiny-rotating": Recipe(
        "AlbertForMaskedLM", ALBERT, 2000, 2e-3, seed=2, stages=SOONER, note=ROTATING
    ),
    "bert-tiny": Recipe("BertForMaskedLM", BERT, 3200, 2e-3, stages=WARM),
    "gpt2-tiny": Recipe("GPT2LMHeadModel", GPT2, 4000, 3e-3),
    "gptneo-tiny": Recipe("GPTNeoForCausalLM", GPTNEO, 3500, 3e-3),
    "llama-tiny": Recipe("LlamaForCausalLM", LLAMA, 3500, 3e-3),
}
