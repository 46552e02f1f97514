"""Every claim can hold, fail and stay undecided; what cannot be had is a row that says so."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from typer.testing import CliRunner

import eigenlens
from eigenlens.claims.evidence import Evidence, Settings
from eigenlens.claims.run import _judge
from eigenlens.claims.suites import SUITES, Subject
from eigenlens.claims.table import CLAIMS, share
from eigenlens.claims.verdicts import VERDICTS, most_layers, most_starts, side
from eigenlens.cli.app import app
from eigenlens.errors import OptionError, UnreachableError
from eigenlens.report.claims_tables import STYLES

BY_NAME = {claim.name: claim for claim in CLAIMS}


def layer(**changes: Any) -> SimpleNamespace:
    """A traced layer that tilts tokens beyond every null."""
    base: dict[str, Any] = {
        "kind": "self",
        "gamma": 0.2,
        "expected_gamma": 0.07,
        "gain": 0.05,
        "rho": 0.9,
        "rho_ci": (0.85, 0.95),
        "gain_ci": (0.04, 0.06),
        "p_gamma": 0.001,
        "p_holm": 0.004,
        "beyond": True,
        "nulls": {
            "matched_spectrum": {"rho": 0.6},
            "random_direction": {"quantiles": {"rho": (0.3, 0.5, 0.7)}},
        },
    }
    return SimpleNamespace(**(base | changes))


AWAY = {
    "gamma": 0.01,
    "gain": -0.05,
    "rho": 0.1,
    "rho_ci": (0.05, 0.15),
    "gain_ci": (-0.06, -0.04),
    "p_gamma": 0.99,
    "p_holm": 1.0,
    "beyond": False,
}
UNSURE = {"rho": 0.55, "rho_ci": (0.4, 0.75), "gain_ci": (-0.01, 0.02), "p_gamma": 0.4}


def traced(layers: list[SimpleNamespace], r: float = 0.8, ci: Any = (0.4, 0.95)) -> Any:
    stack = SimpleNamespace(gain_against_gap={"r": r, "ci": ci, "n": len(layers)})
    return SimpleNamespace(
        trace=SimpleNamespace(layers=layers, stacks=[stack], model={"d_model": 64})
    )


def verdict(name: str, evidence: Any) -> str:
    return BY_NAME[name].judge(evidence).verdict


@pytest.mark.parametrize("name", ["gamma", "gain", "rho", "rho-nulls"])
def test_claims_on_layers_follow_the_intervals(name: str) -> None:
    assert verdict(name, traced([layer() for _ in range(4)])) == "holds"
    assert verdict(name, traced([layer(**AWAY) for _ in range(4)])) == "fails"
    unsure = {"beyond": False, "p_holm": 0.3} | UNSURE
    assert verdict(name, traced([layer(**unsure) for _ in range(4)])) == "undecided"
    # most layers: three of five are enough, two of five and two unsure are not
    assert verdict(name, traced([layer()] * 3 + [layer(**AWAY)] * 2)) == "holds"
    mixed = [layer()] * 2 + [layer(**unsure)] * 2 + [layer(**AWAY)]
    assert verdict(name, traced(mixed)) == "undecided"


def test_chance_is_that_of_each_layers_own_target() -> None:
    """A plane is met more often than a line."""
    measured = BY_NAME["gamma"].judge(traced([layer(), layer(expected_gamma=0.111)])).measured
    assert "(random 0.070 to 0.111)" in measured
    assert "(random 0.070)" in BY_NAME["gamma"].judge(traced([layer()])).measured


def test_the_sentence_under_a_trace_and_the_claim_count_alike() -> None:
    """A layer whose interval holds the null's rho is above it in neither."""
    from eigenlens.report.trace_words import _beyond_rotated

    sure, close = layer(), layer(rho=0.65, rho_ci=(0.58, 0.72))
    found = BY_NAME["rho-nulls"].judge(traced([sure, close, close, layer(**AWAY)]))
    assert (found.details["above_matched"], found.details["both"]) == (1, 1)
    assert found.details["below"] == 1
    assert "with the whole interval above F turned at random in 1, both in 1" in found.measured
    several = [
        SimpleNamespace(**vars(x), stack="decoder", layer=i, step=i, label=str(i))
        for i, x in enumerate([sure, close])
    ]
    words = _beyond_rotated(SimpleNamespace(layers=several, options={"mode": "step"}), several)
    assert "with their whole interval, too: 1 of these 2" in words
    assert "may do as much" in words


def test_the_claim_on_the_gap_follows_its_interval() -> None:
    some = [layer() for _ in range(8)]
    assert verdict("gap", traced(some)) == "holds"
    assert verdict("gap", traced(some, -0.8, (-0.95, -0.4))) == "fails"
    assert verdict("gap", traced(some, 0.2, (-0.6, 0.8))) == "undecided"
    assert verdict("gap", traced(some[:2], 0.2, None)) == "undecided"


def test_a_wrong_identity_fails() -> None:
    row = SimpleNamespace(error_one=1e-7, error_four=1e-7, error_heads=None, ok=True)
    wrong = SimpleNamespace(error_one=1e-7, error_four=0.3, error_heads=None, ok=False)
    given = SimpleNamespace(identity=[row, row], identity_tolerance=1e-4)
    assert verdict("power-step", given) == "holds"
    given.identity = [row, wrong]
    assert verdict("power-step", given) == "fails"


def run_of(
    labels: dict[str, int],
    reached: list[float],
    angle: float | None = None,
    one: int | None = None,
) -> Any:
    basins = [
        SimpleNamespace(label=k, count=v, together=v if one is None else one)
        for k, v in labels.items()
    ]
    spectrum = SimpleNamespace(gap=0.1, angle=0.3, basis=lambda: np.eye(4)[:, :1])
    observed = SimpleNamespace(angle_per_step=angle)
    return SimpleNamespace(
        layers=[spectrum],
        simulation=SimpleNamespace(basins=basins, outcome=SimpleNamespace(observed=observed)),
        final_alignment=lambda basis: np.array(reached),
    )


def test_claims_on_starts_follow_wilson() -> None:
    assert verdict("consensus", run_of({}, [1.0] * 16)) == "holds"
    assert verdict("consensus", run_of({}, [0.5] * 16)) == "fails"
    assert verdict("consensus", run_of({}, [1.0, 0.5] * 8)) == "undecided"
    assert verdict("rotation", run_of({"rotation": 16}, [1.0] * 16, 0.3)) == "holds"
    # turning elsewhere is not turning in the leading plane
    assert verdict("rotation", run_of({"rotation": 16}, [0.5] * 16, 0.3)) == "fails"
    assert verdict("other-ends", run_of({"consensus": 64}, [1.0] * 64)) == "holds"
    assert verdict("other-ends", run_of({"consensus": 16}, [1.0] * 16)) == "undecided"
    ends = {"consensus": 32, "bipartite": 20, "clusters": 12}
    assert verdict("other-ends", run_of(ends, [1.0] * 64)) == "fails"


def test_starts_that_have_not_settled_count_for_neither_side() -> None:
    some = {"rotation": 20, "unsettled": 44}
    assert verdict("rotation", run_of(some, [1.0] * 64, 0.3)) == "undecided"
    assert verdict("rotation", run_of({"rotation": 60, "unsettled": 4}, [1.0] * 64)) == "holds"
    assert verdict("rotation", run_of({"consensus": 60, "unsettled": 4}, [1.0] * 64)) == "fails"
    # Tokens that are one stay one, wherever they go from there.
    apart, one = (run_of({"unsettled": 64}, [0.5] * 64, one=n) for n in (0, 64))
    assert verdict("other-ends", apart) == "undecided"
    assert verdict("other-ends", one) == "holds"
    told = BY_NAME["other-ends"].judge(run_of({"consensus": 55, "unsettled": 9}, [1.0] * 64))
    assert told.measured == "of 64 starts: consensus 55, not settled 9 (tokens are one in all)"


def test_the_rule_by_hand() -> None:
    assert [side(0.6, 0.9, 0.5), side(0.1, 0.5, 0.5), side(0.4, 0.6, 0.5)] == [
        "holds",
        "fails",
        "undecided",
    ]
    found = most_layers([(0.6, 0.7), (0.4, 0.6), None], [0.5] * 3, "x", [0.65, 0.5, None])
    assert found.interval == (1 / 3, 1.0)
    assert found.details["above"] == 1
    assert most_starts(0, 64, "x", 0.1).interval == pytest.approx((0, 0.0566), abs=1e-4)


def test_real_models_are_measured(tmp_path: Path) -> None:
    found = eigenlens.reproduce(
        ["sample:albert-tiny", "sample:gpt2-tiny", str(tmp_path / "none")],
        claims=["power-step", "consensus", "gap"],
        starts=4,
        steps=400,
    )
    rows = {(r.claim, r.model.rpartition("/")[2]): r.finding for r in found.rows_}
    assert rows["power-step", "sample:albert-tiny"].verdict == "holds"
    assert rows["power-step", "sample:gpt2-tiny"].verdict == "holds"
    consensus = rows["consensus", "sample:albert-tiny"]
    assert consensus.details["starts"] == 4
    assert consensus.details["alignment"] > 0.99
    assert ("consensus", "sample:gpt2-tiny") not in rows  # its layers differ
    assert rows["gap", "sample:gpt2-tiny"].verdict == "undecided"  # four layers
    missing = rows["power-step", "none"]
    assert missing.verdict == "not run"
    assert "none" in missing.measured
    assert found.counts["not run"] == 1
    assert "not run" in repr(found)
    assert "all tokens along v1 from 4 of 4 starts" in str(found)
    assert [r.claim for r in found.rows_] == sorted(
        [r.claim for r in found.rows_], key=list(BY_NAME).index
    )


def test_command_prints_failures_like_the_rest(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    words = ["reproduce", "--model", "sample:gpt2-tiny", "--claim", "power-step", "--out", str(out)]
    words += ["--figure", str(tmp_path / "r.png"), "--format", "table"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "1 measurement of 1 claim: 1 holds." in done.stdout
    told = json.loads(out.read_text())
    assert told["schema"] == "eigenlens.reproduce/1"
    assert told["claims"][0]["verdict"] == "holds"
    assert (tmp_path / "r.png").read_bytes()[:4] == b"\x89PNG"


def test_tables_agree() -> None:
    assert set(STYLES) == set(VERDICTS)
    assert len(SUITES["paper"]) == 17
    assert {s.ends for s in SUITES["paper"]} == {"span", "rotation", None}
    assert all(claim.choice for claim in CLAIMS)


def test_wrong_input_is_told() -> None:
    with pytest.raises(OptionError, match="suite 'paperr' is unknown"):
        eigenlens.reproduce("paperr")
    with pytest.raises(OptionError, match="claim 'rhoo' is unknown"):
        eigenlens.reproduce("samples", claims=["rhoo"])
    with pytest.raises(OptionError, match="at least 1, 2 and 0"):
        Settings(starts=0)
    assert Evidence(Subject("x"), Settings(), print).subject.ends is None


def test_claims_on_layers_pass_over_cross_attention_and_single_layers() -> None:
    away = [layer(**AWAY, kind="cross")] * 3
    assert verdict("gain", traced([layer(), layer(), *away])) == "holds"
    one = SimpleNamespace(shared=False, layers=(layer(),))
    two = SimpleNamespace(shared=False, layers=(layer(), layer()))
    assert not BY_NAME["gain"].about(cast(Any, one))
    assert BY_NAME["gain"].about(cast(Any, two))


def test_steering_fails_only_where_no_strength_reaches_it() -> None:
    class Hard:
        def __init__(self, error: Exception) -> None:
            self.error = error

        @property
        def steering(self) -> Any:
            raise self.error

    found = BY_NAME["steering"].judge(cast(Any, Hard(UnreachableError("none; use --x"))))
    assert (found.verdict, found.measured) == ("fails", "none")
    refused = _judge(BY_NAME["steering"], cast(Any, Hard(OptionError("a norm behind it"))))
    assert (refused.verdict, refused.measured) == ("not run", "a norm behind it")
    broken = _judge(BY_NAME["steering"], cast(Any, Hard(RuntimeError("a\nb"))))
    assert (broken.verdict, "RuntimeError: a b" in broken.measured) == ("not run", True)
    seeing = SimpleNamespace(session=SimpleNamespace(vision=True), layers=(layer(),))
    assert not BY_NAME["steering"].about(cast(Any, seeing))


def test_a_share_is_only_0_or_100_where_it_is() -> None:
    assert [share(x) for x in (0.0, 0.0004, 0.5, 0.9996, 1.0)] == [
        *("0%", "0.04%", "50%", "99.96%", "100%")
    ]
    assert [share(x) for x in (1e-5, 1e-9, 1 - 1e-5, 1 - 1e-9)] == [
        *("0.01%", "0.01%", "99.99%", "99.99%")
    ]


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (OSError(28, "No space left on device", "out.bin"), "out.bin: No space left on device"),
        (PermissionError(13, "Permission denied"), "Permission denied"),
        (ConnectionError("the hub does not answer"), "ConnectionError: the hub does not answer"),
        (MemoryError(), "not enough memory"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"),
            "not enough memory",
        ),
    ],
)
def test_what_a_machine_refuses_is_no_fault_of_eigenlens(error: Exception, why: str) -> None:
    class Hard:
        @property
        def steering(self) -> Any:
            raise error

    assert _judge(BY_NAME["steering"], cast(Any, Hard())).measured == why


class Faulty:
    """Evidence of a model of which one claim cannot be measured, for a bug."""

    def __init__(self, subject: Subject, settings: Settings, step: Any) -> None:
        self.subject, self.shared, self.layers = subject, False, (layer(), layer())
        self.session = SimpleNamespace(vision=False)

    @property
    def steering(self) -> Any:
        raise ZeroDivisionError("by 0")


def test_a_bug_behind_a_row_is_told_and_can_be_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eigenlens.claims.run.Evidence", Faulty)
    words = ["reproduce", "--model", "a", "--claim", "steering"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1
    assert "warning: a, steering: not run: an error that was not foreseen" in done.stderr
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert "nothing was measured: an error that was not foreseen, ZeroDivisionError" in last
    assert 'raise ZeroDivisionError("by 0")' in CliRunner().invoke(app, [*words, "--debug"]).stderr
    assert "Traceback" not in CliRunner().invoke(app, words).stderr


def test_a_claim_that_speaks_of_a_model_is_not_said_to_be_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Refusing(Faulty):
        @property
        def steering(self) -> Any:
            raise OptionError("a norm behind it")

    monkeypatch.setattr("eigenlens.claims.run.Evidence", Refusing)
    done = CliRunner().invoke(app, ["reproduce", "--model", "a", "--claim", "steering"])
    assert done.exit_code == 1
    assert "nothing was measured: a norm behind it" in done.stderr


def test_models_are_gone_before_the_next_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[Any] = []
    seen: list[int] = []

    class Heavy(Faulty):
        def __init__(self, subject: Subject, settings: Settings, step: Any) -> None:
            import weakref

            seen.append(sum(ref() is not None for ref in alive))
            super().__init__(subject, settings, step)
            self.itself = self  # a cycle, as models have
            alive.append(weakref.ref(self))
            if subject.source == "broken":
                del self.session  # cannot be had

    monkeypatch.setattr("eigenlens.claims.run.Evidence", Heavy)
    found = eigenlens.reproduce(["a", "broken", "b"], claims=["steering"])
    assert [row.finding.verdict for row in found.rows_] == ["not run"] * 3
    assert seen == [0, 0, 0]


def test_nothing_measured_is_exit_1_one_row_a_model(tmp_path: Path) -> None:
    words = ["reproduce", "--model", str(tmp_path / "none"), "--claim", "power-step"]
    done = CliRunner().invoke(app, [*words, "--claim", "steering", "--format", "json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["counts"]["not run"] == 1
    assert "nothing was measured" in done.stderr


def test_tokens_move_away_where_the_whole_interval_says_so() -> None:
    from eigenlens.report.trace_words import _answer

    unsure = layer(rho=0.48, rho_ci=(0.42, 0.55), beyond=False)
    layers = [
        SimpleNamespace(**vars(x), stack="decoder", layer=i, step=i, label=str(i))
        for i, x in enumerate([layer(), unsure, layer(**AWAY), unsure])
    ]
    result = SimpleNamespace(layers=layers, options={"mode": "step"}, verdict={"by": "p"})
    assert "most tokens move away in 1 of them (2)" in _answer(result, "layer")
