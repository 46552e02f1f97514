"""`eigenlens steer`: a direction to the top of a layer's spectrum, and what that does to text."""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from eigenlens.cli.boundary import boundary, emit, progress_bar, warn
from eigenlens.cli.options import (
    ArchitectureOption,
    DebugOption,
    FiguresOption,
    FormatOption,
    ModelArgument,
    OutOption,
    QuietOption,
    StackOption,
    VersionOption,
)
from eigenlens.cli.prompt_options import DeviceOption, TrustOption
from eigenlens.cli.trace import LiveDtype


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


class WriteForm(StrEnum):
    """The names of `eigenlens.steering.result.FORM_NAMES`."""

    checkpoint = "checkpoint"
    lora = "lora"
    delta = "delta"


def steer(
    model: ModelArgument,
    token: Annotated[
        list[str] | None,
        typer.Option(
            "--token",
            metavar="S",
            help="Towards this token, with its leading space (' Paris'); may be repeated.",
            show_default=False,
        ),
    ] = None,
    direction: Annotated[
        Path | None,
        typer.Option(
            "--direction",
            metavar="FILE",
            help="Towards the vector of a .npy, .safetensors or .gguf (control vector) file.",
            show_default=False,
        ),
    ] = None,
    contrast: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            "--contrast",
            metavar="POS NEG",
            help="Towards the mean state of the texts in POS, less that of NEG.",
            show_default=False,
        ),
    ] = None,
    from_layer: Annotated[
        int | None,
        typer.Option(
            "--from-layer",
            metavar="N",
            help="Towards the leading eigenvector of layer N.",
            show_default=False,
        ),
    ] = None,
    layer: Annotated[int, typer.Option(metavar="N", help="Layer to edit; -1 is the last.")] = -1,
    site: Annotated[
        SiteName, typer.Option(help="Output matrix of attention or of the feed-forward part.")
    ] = SiteName.attention,
    steps_edited: Annotated[
        StepsName,
        typer.Option("--steps-edited", help="Of a layer that runs several times (ALBERT)."),
    ] = StepsName.last,
    probe: Annotated[
        ProbeName | None,
        typer.Option(
            help="What it reads of a token; by default calibrated, with --weights-only eigen.",
            show_default=False,
        ),
    ] = None,
    strength: Annotated[
        str,
        typer.Option(
            metavar="X",
            help="A number, negative to suppress; auto: the most that --max-kl allows.",
        ),
    ] = "auto",
    target_cosine: Annotated[
        float | None,
        typer.Option(
            "--target-cosine",
            metavar="C",
            help="In place of a strength: align tokens to this mean cosine, whatever the harm.",
            show_default=False,
        ),
    ] = None,
    max_kl: Annotated[
        float,
        typer.Option("--max-kl", metavar="X", help="Bound of auto: nats per token of change."),
    ] = 0.5,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Texts the probe is fitted to; by default half of 64 sentences.",
            show_default=False,
        ),
    ] = None,
    evaluate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Texts the edit is judged on; by default the other half.",
            show_default=False,
        ),
    ] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Also a curve over strengths, and the useful window.")
    ] = False,
    weights_only: Annotated[
        bool,
        typer.Option(
            "--weights-only", help="From the files alone: no text, no torch; spectra only."
        ),
    ] = False,
    write: Annotated[
        Path | None,
        typer.Option("--write", metavar="DIR", help="Save the edit there.", show_default=False),
    ] = None,
    write_as: Annotated[
        WriteForm,
        typer.Option("--as", help="The whole model, a PEFT adapter, or the edit's vectors alone."),
    ] = WriteForm.checkpoint,
    force: Annotated[bool, typer.Option("--force", help="Write over what is at --write.")] = False,
    link: Annotated[
        bool,
        typer.Option("--link", help="Hard links in place of copies of files that stay the same."),
    ] = False,
    figures: FiguresOption = None,
    batch_size: Annotated[int, typer.Option(help="Texts a batch.")] = 8,
    stack: StackOption = None,
    dtype: Annotated[LiveDtype, typer.Option(help="Of the live model.")] = LiveDtype.float32,
    device: DeviceOption = "cpu",
    seed: Annotated[int, typer.Option(min=0, help="Of random tokens.")] = 0,
    architecture: ArchitectureOption = None,
    trust_remote_code: TrustOption = False,
    format: FormatOption = None,
    out: OutOption = None,
    quiet: QuietOption = False,
    debug: DebugOption = False,
    version: VersionOption = False,
) -> None:
    """Put a direction at the top of a layer's spectrum, and see what that does to text.

    Adds a rank-one term to the output projection of the last layer, so that all tokens receive the
    direction, and measures it on held-out text. The model's files are not changed; --write saves an
    edited copy, a LoRA adapter or the edit alone.
    """
    amount = _strength(strength)
    with boundary(debug):
        from eigenlens.errors import OptionError
        from eigenlens.report.serialise import SUFFIXES, check_target
        from eigenlens.steering.steer import steer as compute

        if out is not None:
            check_target(out, list(SUFFIXES))
        if figures is not None:
            from eigenlens.report.figures.table import check_folder, figure_files

            check_folder(figures)
        if write is None and (force or link or write_as is not WriteForm.checkpoint):
            raise OptionError("--as, --force and --link belong to --write: say where to write")
        if link and write_as is not WriteForm.checkpoint:
            raise OptionError(f"--link is for --as checkpoint: --as {write_as} copies no files")
        if write is not None:
            from eigenlens.circuit.checkpoint import open_checkpoint
            from eigenlens.steering.result import check_form

            check_form(open_checkpoint(model, architecture), write, write_as.value, force=force)
        with progress_bar(quiet, "parts") as progress:
            result = compute(
                model,
                token,
                direction=direction,
                contrast=contrast,
                from_layer=from_layer,
                layer=layer,
                stack=stack,
                site=site.value,
                steps_edited=steps_edited.value,
                probe=None if probe is None else probe.value,
                strength=amount,
                target_cosine=target_cosine,
                max_kl=max_kl,
                calibrate=calibrate,
                evaluate=evaluate,
                sweep=sweep,
                weights_only=weights_only,
                batch_size=batch_size,
                dtype=dtype.value,
                device=device,
                architecture=architecture,
                trust_remote_code=trust_remote_code,
                seed=seed,
                progress=progress,
            )
        if write is not None:
            result = _saved(result, write, write_as.value, force=force, link=link)
        warn(list(result.warnings), quiet)

        def view() -> Any:
            return import_module("eigenlens.report.steer_tables").steer_view(result)

        files = {} if figures is None else figure_files({"steer": result}, figures)
        emit(result, view, format, out, files=files, quiet=quiet)


def _saved(result: Any, folder: Path, form: str, *, force: bool, link: bool) -> Any:
    """The result with what was written of it."""
    from dataclasses import replace

    written = result.write(folder, form, force=force, link=link)
    warnings = (*result.warnings, *written.warnings)
    return replace(result, written=written, warnings=warnings)


def _strength(text: str) -> str | float:
    """A strength as it was typed: ``auto`` or a number.

    Raises
    ------
    typer.BadParameter
        It is neither.
    """
    if text == "auto":
        return text
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no strength; write auto or a number", param_hint="--strength"
        ) from None
