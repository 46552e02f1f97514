"""The paper's suite from a hub on this machine: random checkpoints of the models' own shapes.

Widths, heads and groups are those of the models; the vocabulary is small, and stacks of more than
1 GB of weights are cut to two layers. No verdict is expected of random weights: what is tested is
that every model of the suite is fetched, run and judged on every claim that speaks of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import eigenlens
from eigenlens.claims.suites import SUITES
from eigenlens.claims.table import CLAIMS
from hub_server import serving

ALBERT = {"base": (768, 12), "large": (1024, 16), "xlarge": (2048, 16), "xxlarge": (4096, 64)}
GPT2 = {"gpt2": (768, 12, 12), "gpt2-medium": (1024, 16, 2), "gpt2-large": (1280, 20, 2)}
GPT2 |= {"gpt2-xl": (1600, 25, 2)}
BERT = {"base": (768, 12, 12), "large": (1024, 16, 2)}
NEO = {"125m": (768, 12, 12), "1.3B": (2048, 16, 2), "2.7B": (2560, 20, 2)}


def config_of(source: str) -> Any:
    """The transformers config of one of the paper's models, with a small vocabulary."""
    from transformers import AlbertConfig, BertConfig, GPT2Config, GPTNeoConfig

    name = source.rpartition("/")[2]
    if name.startswith("albert"):
        d, heads = ALBERT[name.split("-")[1]]
        sizes = {"hidden_size": d, "num_attention_heads": heads, "intermediate_size": 4 * d}
        layers = 24 if "-large" in name or "-xlarge" in name else 12
        return AlbertConfig(vocab_size=500, num_hidden_layers=layers, embedding_size=128, **sizes)
    if name.startswith("bert"):
        d, heads, layers = BERT[name.split("-")[1]]
        sizes = {"hidden_size": d, "num_attention_heads": heads, "intermediate_size": 4 * d}
        return BertConfig(vocab_size=500, num_hidden_layers=layers, **sizes)
    if name.startswith("gpt2"):
        d, heads, layers = GPT2[name]
        return GPT2Config(vocab_size=500, n_embd=d, n_head=heads, n_layer=layers)
    d, heads, layers = NEO[name.removeprefix("gpt-neo-")]
    kinds = [[["global", "local"], layers // 2]]
    sizes = {"hidden_size": d, "num_heads": heads, "num_layers": layers}
    return GPTNeoConfig(vocab_size=500, attention_types=kinds, **sizes)


@pytest.mark.slow
@pytest.mark.parametrize("subject", SUITES["paper"], ids=lambda s: s.source.rpartition("/")[2])
def test_the_suite_runs_at_the_papers_shapes(
    subject: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from transformers import AutoModel

    torch.manual_seed(0)
    AutoModel.from_config(config_of(subject.source)).save_pretrained(tmp_path / "made")
    with serving(tmp_path, monkeypatch) as hub:
        for path in (tmp_path / "made").iterdir():
            hub.files[path.name] = path.read_bytes()
        monkeypatch.setitem(SUITES, "paper", (subject,))
        found = eigenlens.reproduce("paper", starts=2, steps=6)
        assert hub.sent("model.safetensors") > 0
    claims = {row.claim for row in found.rows_}
    shared = {"power-step", "other-ends"} | ({"sizes"} if subject.ends else set())
    varying = {"power-step", "gamma", "gain", "rho", "rho-nulls", "gap"}
    albert = "albert" in subject.source
    assert (shared if albert else varying) <= claims
    assert claims <= {c.name for c in CLAIMS}
    for row in found.rows_:
        assert row.finding.verdict != "not run", row.finding.measured
        if row.claim == "power-step":
            assert row.finding.verdict == "holds"
            assert row.finding.value is not None
            assert row.finding.value < 1e-4
