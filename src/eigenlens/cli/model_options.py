"""Groups of options that say which model, which part of it, and what is asked of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from eigenlens.cli.choices import Dtype, LiveDtype, OperatorName, OrderName, SolverName
from eigenlens.cli.groups import Group
from eigenlens.cli.options import (
    ArchitectureOption,
    DeviceOption,
    KOption,
    PromptsOption,
    StackOption,
    TieOption,
    TrustOption,
    optional,
    parse_layers,
    path_option,
    seed_option,
)


@dataclass(frozen=True)
class Chosen(Group):
    """The part of the model that is looked at."""

    stack: StackOption = None
    layers: Annotated[
        str | None, optional("--layers", metavar="LIST", help="Only these layers, e.g. 0,3-5.")
    ] = None

    def asked(self) -> dict[str, Any]:
        """The stack, and the layers as numbers.

        Raises
        ------
        typer.BadParameter
            They are no list of layers.
        """
        return {"stack": self.stack, "layers": parse_layers(self.layers)}


@dataclass(frozen=True)
class Loaded(Group):
    """How a model that runs is loaded; a command adds the dtypes that it can work in."""

    device: DeviceOption = "cpu"
    architecture: ArchitectureOption = None
    trust_remote_code: TrustOption = False


@dataclass(frozen=True)
class LiveModel(Loaded):
    """A model that runs as it would anywhere else."""

    dtype: Annotated[LiveDtype, typer.Option(help="Of the live model.")] = LiveDtype.float32


@dataclass(frozen=True)
class Texts(Group):
    """What a live model is fed."""

    prompts: PromptsOption = None
    text: Annotated[
        list[str] | None, optional("--text", metavar="S", help="A text; may be repeated.")
    ] = None

    def asked(self) -> dict[str, Any]:
        """As the library calls them, where there are ``texts``."""
        asked = super().asked()
        asked["texts"] = asked.pop("text") or None
        return asked


@dataclass(frozen=True)
class Fed(Texts):
    """What a live model is fed, token ids included."""

    token_ids: Annotated[
        Path | None, path_option("--token-ids", "FILE", "One JSON list of ids a line.")
    ] = None


@dataclass(frozen=True)
class Leading(Group):
    """Which eigenvalues lead, and of what."""

    order: Annotated[OrderName, typer.Option(help="What leads, as in eigenlens spectrum.")] = (
        OrderName.auto
    )
    operator: Annotated[OperatorName, typer.Option(help="F alone, or with the norm's gain.")] = (
        OperatorName.raw
    )
    tie_tolerance: TieOption = 0.01


@dataclass(frozen=True)
class Solving(Group):
    """How many eigenvalues, and by which way."""

    k: KOption = 8
    all_: Annotated[bool, typer.Option("--all", help="All eigenvalues instead of k.")] = False
    solver: Annotated[
        SolverName, typer.Option(help="How to solve; auto decides by size and k.")
    ] = SolverName.auto


@dataclass(frozen=True)
class Numbers(Group):
    """The numbers that spectra are computed with."""

    dtype: Annotated[Dtype, typer.Option(help="Compute dtype.")] = Dtype.float64
    seed: Annotated[int, seed_option("Of the Krylov start vectors.")] = 0
