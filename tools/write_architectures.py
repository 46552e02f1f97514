"""Write docs/architectures.md: every model type of the table, and what is known of it.

`--check` says whether the file is current; `make lint` runs it. Whether a type was verified comes
from tests/golden/families.json, which the family tests write.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

from eigenlens.circuit.architectures import ARCHITECTURES, KINDS, REFUSED  # noqa: E402
from eigenlens.circuit.facts import Cases, Switch  # noqa: E402
from eigenlens.circuit.rows import Architecture, Stack  # noqa: E402

TARGET = ROOT / "docs" / "architectures.md"
GOLDEN = ROOT / "tests" / "golden" / "families.json"
TITLES = {
    "decoders": "Text decoders",
    "encoders": "Text encoders",
    "seq2seq": "Encoder-decoders",
    "vision": "Vision",
    "audio": "Sound",
    "composites": "Models of several towers",
}
RULES = """## A type of one's own

`--architecture rules.toml` describes a model whose names are not in the table; unknown keys are
errors. `eigenlens inspect MODEL --architecture rules.toml --verify` checks it where transformers
can build the model. `.weight` and `.bias` follow the names; a prefix such as `model.` is found.
A config key that is named for a scale has to be in the config, and `placement` has to be stated
where no norm is named.

```toml
[[stack]]
name = "decoder"                            # or encoder, vision, ...
value = "layers.{layer}.attn.v"             # or the fused projection that holds the values
output = "layers.{layer}.attn.o"
norm_before = "layers.{layer}.norm1"        # norm_after for a post-norm
placement = "pre"                           # pre, post, parallel, sandwich: it decides the order
norm_kind = "rmsnorm"                       # or layernorm
layout = "separate"                         # see below
output_orientation = "linear"               # or conv1d; if not stated, as the layout's values
value_bias = false                          # whether the projections have biases
output_bias = { key = "use_bias", default = false, yes = true, no = false }

[keys]
n_heads = ["num_q_heads"]                   # config keys, where they are not the usual ones
```

## Words

| layout | how the stored projection holds the values |
|---|---|
| `separate` | a projection of their own |
| `stacked` | `[q; k; v]`, each with its own width |
| `kv_stacked` | `[k; v]` |
| `per_head` | head by head `[q, k, v]` (GPT-NeoX, BLOOM) |
| `kv_per_head` | head by head `[k, v]` |
| `per_group` | per KV head `[q, ..., q, k, v]` (Falcon) |
| `blocks_of_four` | four blocks of `[q, v, k]` (CodeGen) |
| `interleaved` | dimension by dimension q, k, v |
| `..._conv1d` | the same, stored (in, out) as in GPT-2; the output projection likewise |

*norm stands*: `post` on the sum of residual and output; `pre` before the values; `parallel` before
attention and feed-forward at once; `sandwich` on the attention output before the sum (mostly with
one before the values too).
"""
INTRO = """# Architectures

Written by tools/write_architectures.py from the table in `eigenlens.circuit.architectures`; do not
edit. *verified*: on a tiny random model in float64, every F agrees with the running model to 1e-10
at one token, at equal tokens, and head by head where attention is returned. What is not supported
is [at the end](#refused-and-why), with the reason; a model type that is not here can be described
in a [file of rules](#a-type-of-ones-own).
"""


def words(rule: Any) -> str:
    """A fact, or the facts that the config chooses from."""
    if isinstance(rule, Switch) and rule.no is None:
        return f"if `{rule.key}` is set: {words(rule.yes)}"
    if isinstance(rule, Switch) and rule.yes is None:
        return f"unless `{rule.key}` is set: {words(rule.no)}"
    if isinstance(rule, Switch):
        return f"{words(rule.yes)} or {words(rule.no)} (`{rule.key}`)"
    if isinstance(rule, Cases):
        found = dict.fromkeys([*map(words, rule.cases.values()), words(rule.other)])
        return f"{' or '.join(found)} (`{rule.key}`)"
    return "none" if rule is None else str(rule)


def notes(stack: Stack) -> str:
    """What is said beside F."""
    found = [words(note) for note in (*stack.notes, stack.refused) if note is not None]
    found += [f"skipped: {reason}" for reason in stack.others.values()]
    listed = [rule for rule in (stack.skip, stack.layer_notes) if rule is not None]
    found += [f"some layers: {text}" for rule in listed for text in rule.words.values()]
    if stack.output_scale is not None or any(n.scale for n in stack.namings):
        found.append("output scale")
    return "; ".join(dict.fromkeys(found))


def rows(model_type: str, row: Architecture, status: str) -> list[str]:
    """Table rows of one model type: one a stack."""
    lines = [
        (s.name if s.kind == "self" else f"{s.name} ({s.kind})", words(s.layout), s, notes(s))
        for s in row.stacks
    ]
    cells = [
        [name, layout, words(s.placement), words(s.norm_kind), note]
        for name, layout, s, note in lines
    ]
    cells += [
        [t.name, "", "", "", f"a tower: the row of `{'.'.join(t.path)}`'s model type"]
        for t in row.towers
    ]
    return [f"| {' | '.join([f'`{model_type}`', *cell, status])} |" for cell in cells]


def text() -> str:
    """The page."""
    known = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    good = sum(known.get(t) == "verified" for t in ARCHITECTURES)
    parts = [INTRO, f"{len(ARCHITECTURES)} model types, {good} of them verified.\n"]
    for kind, title in TITLES.items():
        parts.append(f"## {title}\n")
        head = ["model type", "stack", "layout", "norm stands", "norm", "notes", "verified"]
        lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
        for model_type in sorted(KINDS[kind]):
            status = known.get(model_type, "not yet")
            lines += rows(model_type, KINDS[kind][model_type], status.replace("|", "/"))
        parts.append("\n".join(lines) + "\n")
    parts.append("## Refused, and why\n")
    lines = ["| model type | reason |", "|---|---|"]
    lines += [f"| `{model_type}` | {REFUSED[model_type]} |" for model_type in sorted(REFUSED)]
    parts.append("\n".join(lines) + "\n")
    parts.append(RULES)
    return "\n".join(parts)


def main() -> int:
    """Write the page, or with `--check` compare it."""
    new = text()
    if "--check" in sys.argv[1:]:
        current = TARGET.exists() and TARGET.read_text(encoding="utf-8") == new
        if not current:
            print(f"docs/{TARGET.name} is stale: run python tools/{Path(__file__).name}")
        return int(not current)
    TARGET.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
