"""`eigenlens steer`: a direction to the top of a layer's spectrum, and what that does to text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from eigenlens.cli.boundary import boundary
from eigenlens.cli.choices import WriteForm
from eigenlens.cli.groups import Group, arguments, grouped
from eigenlens.cli.model_options import LiveModel
from eigenlens.cli.options import (
    ModelArgument,
    StackOption,
    optional,
    parse_number,
    path_option,
    seed_option,
)
from eigenlens.cli.output import Figures, Output, table


class SiteName(StrEnum):
    """The names of `eigenlens.steering.edit.SITES`."""

    attention = "attention"
    ffn = "ffn"


class StepsName(StrEnum):
    """The names of `eigenlens.steering.edit.STEPS`."""

    last = "last"
    all = "all"


class ProbeName(StrEnum):
    """The names of `eigenlens.steering.probes.PROBES`."""

    calibrated = "calibrated"
    eigen = "eigen"
    direction = "direction"
    placement = "placement"


@dataclass(frozen=True)
class Towards(Group):
    """The direction that tokens are to receive."""

    token: Annotated[
        list[str] | None,
        optional(
            "--token",
            metavar="S",
            help="Towards this token, with its leading space (' Paris'); may be repeated.",
        ),
    ] = None
    direction: Annotated[
        Path | None,
        path_option(
            "--direction",
            "FILE",
            "Towards the vector of a .npy, .safetensors or .gguf (control vector) file.",
        ),
    ] = None
    contrast: Annotated[
        tuple[Path, Path] | None,
        path_option(
            "--contrast",
            "POS NEG",
            "Towards the mean state of the texts in POS, less that of NEG.",
        ),
    ] = None
    from_layer: Annotated[
        int | None,
        optional("--from-layer", metavar="N", help="Towards the leading eigenvector of layer N."),
    ] = None


@dataclass(frozen=True)
class Placed(Group):
    """Where the edit is made, how strong it is and what it is judged on."""

    layer: Annotated[int, typer.Option(metavar="N", help="Layer to edit; -1 is the last.")] = -1
    stack: StackOption = None
    site: Annotated[
        SiteName, typer.Option(help="Output matrix of attention or of the feed-forward part.")
    ] = SiteName.attention
    steps_edited: Annotated[
        StepsName,
        typer.Option("--steps-edited", help="Of a layer that runs several times (ALBERT)."),
    ] = StepsName.last
    probe: Annotated[
        ProbeName | None,
        optional(
            help="What it reads of a token; by default calibrated, with --weights-only eigen."
        ),
    ] = None
    strength: Annotated[
        str,
        typer.Option(
            metavar="X",
            help="A number, negative to suppress; auto: the most that --max-kl allows.",
        ),
    ] = "auto"
    target_cosine: Annotated[
        float | None,
        optional(
            "--target-cosine",
            metavar="C",
            help="In place of a strength: align tokens to this mean cosine, whatever the harm.",
        ),
    ] = None
    max_kl: Annotated[
        float,
        typer.Option("--max-kl", metavar="X", help="Bound of auto: nats per token of change."),
    ] = 0.5
    calibrate: Annotated[
        Path | None,
        path_option(
            "--calibrate", "FILE", "Texts the probe is fitted to; by default half of trace's own."
        ),
    ] = None
    evaluate: Annotated[
        Path | None,
        path_option(
            "--evaluate", "FILE", "Texts the edit is judged on; by default the other half."
        ),
    ] = None
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Also a curve over strengths, and the useful window.")
    ] = False
    weights_only: Annotated[
        bool,
        typer.Option(
            "--weights-only", help="From the files alone: no text, no torch; spectra only."
        ),
    ] = False
    batch_size: Annotated[int, typer.Option(help="Most texts a batch.")] = 8
    seed: Annotated[int, seed_option("Of random tokens.")] = 0

    def asked(self) -> dict[str, Any]:
        """The options, the strength as a number.

        Raises
        ------
        typer.BadParameter
            The strength is neither a number nor ``auto``.
        """
        what = "strength; write auto or a number"
        strength = parse_number(self.strength, "auto", what, "--strength")
        return super().asked() | {"strength": strength}


@dataclass(frozen=True)
class Saved(Group):
    """Where the edit is written, and as what."""

    write: Annotated[Path | None, path_option("--write", "DIR", "Save the edit there.")] = None
    write_as: Annotated[
        WriteForm,
        typer.Option("--as", help="The whole model, a PEFT adapter, or the edit's vectors alone."),
    ] = WriteForm.checkpoint
    force: Annotated[bool, typer.Option("--force", help="Write over what is at --write.")] = False
    link: Annotated[
        bool,
        typer.Option("--link", help="Hard links in place of copies of files that stay the same."),
    ] = False

    def check(self, model: str, architecture: Path | None) -> None:
        """Refuse what cannot be written.

        Raises
        ------
        EigenlensError
            Options contradict each other, or the model or the place does not allow it.
        """
        from eigenlens.errors import OptionError

        whole = self.write_as is WriteForm.checkpoint
        if self.write is None:
            if self.force or self.link or not whole:
                raise OptionError("--as, --force and --link belong to --write: say where to write")
            return
        from eigenlens.circuit.checkpoint import open_checkpoint
        from eigenlens.steering.forms import Destination

        place = Destination(self.write, self.write_as.value, self.force, self.link)
        place.check(open_checkpoint(model, architecture))

    def save(self, result: Any) -> Any:
        """The result with what was written of it, if anything was to be."""
        if self.write is None:
            return result
        form = self.write_as.value
        written = result.write(self.write, form, force=self.force, link=self.link)
        return replace(result, written=written, warnings=(*result.warnings, *written.warnings))


@grouped
def steer(
    model: ModelArgument,
    *,
    towards: Towards,
    placed: Placed,
    saved: Saved,
    live: LiveModel,
    figures: Figures,
    output: Output,
) -> None:
    """Put a direction at the top of a layer's spectrum, and see what that does to text.

    Adds a rank-one term to the output projection of the last layer, so that all tokens receive the
    direction, and measures it on held-out text. The model's files are not changed; --write saves an
    edited copy, a LoRA adapter or the edit alone.
    """
    asked = arguments(towards, placed, live)
    with boundary(output.debug):
        from eigenlens.errors import OptionError
        from eigenlens.steering.steer import steer as compute

        output.check()
        if figures.figures is not None and asked["weights_only"]:
            raise OptionError(
                "--figures draws what is measured on text, of which --weights-only reads none: "
                "leave one of them out"
            )
        figures.check()
        saved.check(model, live.architecture)
        with output.progress("parts") as progress:
            result = compute(model, **asked, progress=progress)
        result = saved.save(result)
        output.warn(result.warnings)
        view = table("steer_tables", "steer_view", result)
        output.emit(result, view, figures.files(steer=result))
