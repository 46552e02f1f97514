"""`eigenlens simulate`: a live model's layers iterated, and whether the end was foretold."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from eigenlens.cli.boundary import boundary
from eigenlens.cli.choices import Dtype
from eigenlens.cli.groups import Group, arguments, grouped
from eigenlens.cli.model_options import Chosen, Fed, Loaded
from eigenlens.cli.options import ModelArgument, TieOption, optional, path_option, seed_option
from eigenlens.cli.output import Figure, Figures, Output, table


class NormName(StrEnum):
    """The names of `eigenlens.live.replay.NORMS`."""

    l2 = "l2"
    real = "real"


class FormName(StrEnum):
    """The names of `eigenlens.dynamics.simulate.FORMS`, and `auto`."""

    auto = "auto"
    normalised = "normalised"
    stream = "stream"


@dataclass(frozen=True)
class Iterated(Group):
    """What a step is, and how many there are."""

    steps: Annotated[int, typer.Option(metavar="N", help="Layer steps at most.")] = 100
    norm: Annotated[
        NormName, typer.Option(help="N(z) = r z/|z| (the paper's), or the model's own norms.")
    ] = NormName.l2
    radius: Annotated[
        str, typer.Option(metavar="R", help="r of the L2 norm: a number or sqrt_d.")
    ] = "1"
    bias: Annotated[
        bool, typer.Option("--bias/--no-bias", help="Whether b = W_O b_V + b_O stays.")
    ] = False
    ffn: Annotated[bool, typer.Option("--ffn/--no-ffn", help="Whether the whole block runs.")] = (
        False
    )
    form: Annotated[
        FormName,
        typer.Option(
            help="N(x + attn(x)) (normalised) or h + attn(N(h)) (stream); auto takes the first "
            "for post-norm models."
        ),
    ] = FormName.auto
    mask: Annotated[
        str,
        typer.Option(
            metavar="M", help="What tokens see: auto (the model's own), full, causal or window:W."
        ),
    ] = "auto"
    tie_tolerance: TieOption = 0.01


@dataclass(frozen=True)
class Starts(Fed):
    """Where the tokens start."""

    random_states: Annotated[
        bool,
        typer.Option(
            "--random-states",
            help="Start at random points of the sphere, not at embeddings of random tokens.",
        ),
    ] = False
    starts: Annotated[
        int | None,
        optional(
            metavar="N", help="Starts in one batch; by default 1, or all prompts that are given."
        ),
    ] = None
    length: Annotated[
        int, typer.Option("--length", metavar="L", help="Tokens in a random start.")
    ] = 24
    seed: Annotated[int, seed_option("Of random starts.")] = 0

    def read(self) -> dict[str, Any]:
        """What `eigenlens.simulate` takes, once the files are read.

        Raises
        ------
        EigenlensError
            Two kinds of starts are given, or a file is not what it has to be.
        """
        from eigenlens.errors import OptionError
        from eigenlens.prompts import read_prompts, read_token_ids

        asked = self.asked()
        sources = {
            "--prompts": self.prompts is not None,
            "--text": bool(self.text),
            "--token-ids": self.token_ids is not None,
            "--random-states": self.random_states,
        }
        given = [name for name, is_given in sources.items() if is_given]
        if len(given) > 1:
            raise OptionError(f"{' and '.join(given)} exclude each other; give one of them")
        asked["n_tokens"] = asked.pop("length")
        if (prompts := asked.pop("prompts")) is not None:
            asked["texts"] = read_prompts(prompts)
        if self.token_ids is not None:
            asked["token_ids"] = read_token_ids(self.token_ids)
        return asked


@dataclass(frozen=True)
class IteratedModel(Loaded):
    """A model whose layers are iterated: half precision would not converge."""

    dtype: Annotated[Dtype, typer.Option(help="Of the live model.")] = Dtype.float32


@dataclass(frozen=True)
class RunFigure(Figure):
    """A picture of the run."""

    figure: Annotated[
        Path | None, path_option("--figure", "FILE", "Draw the run to FILE: .png, .pdf or .svg.")
    ] = None

    def content(self, result: Any, path: Path) -> bytes:
        """The trajectories, drawn."""
        from eigenlens.report.figures import simulation_figure

        return simulation_figure(result, path)


@grouped
def simulate(
    model: ModelArgument,
    *,
    iterated: Iterated,
    starts: Starts,
    chosen: Chosen,
    live: IteratedModel,
    figure: RunFigure,
    figures: Figures,
    output: Output,
) -> None:
    """Where tokens end if the layers go on and on, and whether that was foretold.

    Iterates the model's own attention far beyond its depth, a stack of different layers in order
    and then again, and sets what happens beside what the spectrum of F foretells. By default the
    paper's model: attention and residual with the L2 norm, no biases, no feed-forward part.
    """
    asked = arguments(iterated, chosen, live)
    with boundary(output.debug):
        from eigenlens.dynamics.live_run import simulate_model

        output.check()
        figure.check()
        figures.check()
        begun = starts.read()
        with output.progress("steps") as progress:

            def step(done: int, total: int) -> None:
                if progress is not None:
                    progress(done, total, "steps")

            result = simulate_model(model, **asked, **begun, progress=step)
        output.warn(result.warnings)
        view = table("simulate_tables", "simulate_view", result)
        output.emit(result, view, figure.files(result) | figures.files(simulate=result))
