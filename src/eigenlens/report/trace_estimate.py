"""The table of ``eigenlens trace --dry-run``: what is fed, and what the run would take."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from eigenlens.inert import inert
from eigenlens.report.estimate import bytes_text, seconds_text
from eigenlens.report.tables import plain_table
from eigenlens.report.words import count_text
from eigenlens.tracing.estimate import TraceEstimate


def trace_estimate_view(result: TraceEstimate) -> RenderableType:
    """What is fed, and what the run will take, with what the numbers rest on."""
    columns = ["prompts", "tokens", "longest", "batches", "layers"]
    nulls = result.options["nulls"]
    columns += ["directions"] if nulls else []
    table = plain_table([(name, "right") for name in [*columns, "memory", "time"]])
    counts = [result.n_prompts, result.n_tokens, result.longest, result.n_batches, result.n_layers]
    counts += [result.options["directions"]] if nulls else []
    known = result.memory_bytes is not None
    memory = bytes_text(result.memory_bytes or 0) if known else "-"
    table.add_row(*map(str, counts), memory, seconds_text(result.seconds))
    source = inert(str(result.model["source"]))
    part = count_text(result.measured_prompts, "prompt")
    if result.measured_layers < result.n_layers:
        part += f" and {result.measured_layers} of {result.n_layers} layers"
    held = f" and {memory} of memory" if known else ""
    sentence = (
        f"{source}: about {seconds_text(result.seconds)}{held}. Measured "
        f"on {part} (which took {seconds_text(result.measured_seconds)}) and multiplied: good to a "
        "factor of about two while nothing else runs. Nothing was traced."
    )
    legend = "tokens: of all prompts; longest: tokens of the longest prompt"
    legend += "; directions: random ones, of the null" if nulls else ""
    return Group(table, Text(sentence), Text(legend, style="dim"))
