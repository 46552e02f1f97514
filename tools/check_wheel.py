"""Build the wheel, and try it without the repository in a clean venv for every extra.

Each venv gets the wheel with one extra, under the constraints of this repository, and runs what
that extra is for on a bundled model, from an empty folder. Exits 1 at the first thing that fails.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODEL = "sample:gpt2-tiny"
TRIES: dict[str, list[list[str]]] = {
    "": [["spectrum", MODEL], ["spectrum", MODEL, "--format", "json"], ["samples"]],
    "report": [
        ["spectrum", MODEL, "--out", "s.parquet"],
        ["spectrum", MODEL, "--figures", "figures"],
        ["report", MODEL, "--sections", "spectrum,heads", "--out", "page.html"],
        ["compare", MODEL, MODEL],
    ],
    "gguf": [["spectrum", MODEL]],
    "cluster": [["survey", "list.txt", "--out", "survey"], ["survey", "summary", "survey"]],
    "models": [
        ["inspect", MODEL, "--verify"],
        ["trace", MODEL, "--text", "a short sentence", "--no-nulls"],
        ["simulate", MODEL, "--steps", "8"],
        ["steer", MODEL, "--from-layer", "0", "--target-cosine", "0.5"],
    ],
    "all": [["steer", MODEL, "--from-layer", "0", "--weights-only", "--strength", "5"]],
}
"""Commands by extra; the empty name is the package alone."""


def run(words: list[str], folder: Path) -> None:
    """Run a command; stop the script if it fails."""
    print("$", *words, flush=True)
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


def main() -> None:
    """Build, and try each extra."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("extras", nargs="*", help="of " + ", ".join(e or "none" for e in TRIES))
    chosen = [e.replace("none", "") for e in parser.parse_args().extras] or list(TRIES)
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        run([sys.executable, "-m", "build", "--outdir", made, str(ROOT)], place)
        (wheel,) = place.glob("*.whl")
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")
        for extra in chosen:
            folder = place / (extra or "none")
            folder.mkdir()
            run([sys.executable, "-m", "venv", "venv"], folder)
            name = f"eigenlens[{extra}] @ {wheel.as_uri()}" if extra else str(wheel)
            limits = str(ROOT / "constraints.txt")
            pip = [str(folder / "venv/bin/python"), "-m", "pip", "install", "--quiet"]
            run([*pip, "--constraint", limits, name], folder)
            (folder / "list.txt").write_text(f"{MODEL}\nsample:bert-tiny\n")
            for words in TRIES[extra]:
                run([str(folder / "venv/bin/eigenlens"), *words], folder)
    print("all of them run")


if __name__ == "__main__":
    main()
