"""The models that claims are tried on."""

from __future__ import annotations

from dataclasses import dataclass

from eigenlens.samples import SAMPLES


@dataclass(frozen=True)
class Subject:
    """One model of a suite.

    Attributes
    ----------
    source
        What `eigenlens.live.session.open_session` takes.
    ends
        Where the paper says that its tokens end: ``span`` or ``rotation``; None where it says
        nothing about this model.
    """

    source: str
    ends: str | None = None


_ALBERT = {"base": "span", "large": "span", "xlarge": "rotation", "xxlarge": "rotation"}

SUITES: dict[str, tuple[Subject, ...]] = {
    "samples": tuple(Subject(f"sample:{name}") for name in SAMPLES),
    "paper": (
        *(
            Subject(f"albert/albert-{size}-{version}", ends)
            for version in ("v1", "v2")
            for size, ends in _ALBERT.items()
        ),
        Subject("google-bert/bert-base-uncased"),
        Subject("google-bert/bert-large-uncased"),
        Subject("openai-community/gpt2"),
        Subject("openai-community/gpt2-medium"),
        Subject("openai-community/gpt2-large"),
        Subject("openai-community/gpt2-xl"),
        Subject("EleutherAI/gpt-neo-125m"),
        Subject("EleutherAI/gpt-neo-1.3B"),
        Subject("EleutherAI/gpt-neo-2.7B"),
    ),
}
"""Suite by the name that users type: the bundled and installed samples, and the paper's models."""
