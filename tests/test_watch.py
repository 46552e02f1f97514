"""A watch reads the live weights and leaves the training exactly as it was."""

from __future__ import annotations

import json
import logging
import math
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import eigenlens
import eigenlens.integrations
from eigenlens.errors import EigenlensError, NumericsError, OptionError
from eigenlens.integrations import EigenlensCallback, Reading, Watch
from eigenlens.integrations import untouched as untouched_room
from eigenlens.integrations.probes import probe_ids
from eigenlens.integrations.reading import MEASURES, REGIME_CODES
from eigenlens.measure.collapse import collapse
from eigenlens.spectra.principal import REGIMES

PROBE = [[1, 2, 3, 4, 5, 6], [7, 8, 9, 1]]


def small(seed: int = 0, dropout: float = 0.0) -> Any:
    torch.manual_seed(seed)
    drop = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    size = {"vocab_size": 32, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**size, **drop, **ends, initializer_range=0.2)).train()


def train(
    model: Any, steps: int, watch: Callable[[Any], Watch] | None = None, around: Any = nullcontext
) -> tuple[list[float], Watch | None]:
    """Some steps of AdamW on random tokens, with what a training draws from random states."""
    watching = None if watch is None else watch(model)  # the checker of annotations draws here
    random.seed(3)
    torch.manual_seed(4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(1, steps + 1):
        ids = torch.randint(32, (4, 12)) if random.random() < 2 else None
        optimizer.zero_grad()
        with around():
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            if watching is not None:
                watching.step(step, loss)
        losses.append(float(loss.detach()))
    return losses, watching


def same(a: Any, b: Any) -> bool:
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


def test_the_package_is_imported_without_torch() -> None:
    code = (
        "import sys, eigenlens.integrations; "
        "assert {'torch', 'transformers'}.isdisjoint(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert issubclass(eigenlens.integrations.EigenlensCallback, TrainerCallback)
    assert sorted(dir(eigenlens.integrations)) == sorted(eigenlens.integrations.__all__)
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = eigenlens.integrations.other


# -- what is read ---------------------------------------------------------------------------------


def test_a_reading_is_the_spectrum_and_the_collapse_of_the_live_weights() -> None:
    model = small()
    watch = eigenlens.integrations.watch(model, PROBE, 1, k=3)
    before = watch.read(0)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.3)
    reading = watch.read(1)
    assert before is not None
    assert reading is not None
    truth = eigenlens.spectrum(model, k=3)
    for layer, old, right in zip(reading.layers, before.layers, truth.layers, strict=True):
        assert layer.name == f"layer_{right.layer}"
        n = len(layer.eigenvalues)
        assert np.allclose(layer.eigenvalues, right.eigenvalues[:n], atol=1e-5)
        assert layer.regime == right.regime
        assert layer.gap == pytest.approx(right.gap, abs=1e-4)
        assert layer.spectral_norm == pytest.approx(1.69 * old.spectral_norm, rel=1e-4)
        if layer.alignment_exponent is not None:
            assert right.gap is not None
            assert layer.alignment_exponent == pytest.approx(-right.gap, abs=1e-4)
        assert layer.alignment_rate is None
    model.eval()
    with torch.no_grad():
        states = [model.transformer(torch.tensor([ids])) for ids in PROBE]
        hidden = [
            model.transformer(torch.tensor([ids]), output_hidden_states=True).hidden_states[1][0]
            for ids in PROBE
        ]
    assert len(states) == 2
    expected = [collapse(h.numpy()) for h in hidden]
    for name in MEASURES:
        mean = np.mean([e[name] for e in expected])
        assert reading.tokens["layer_0"][name] == pytest.approx(mean, rel=1e-4)


def test_flat_numbers_are_json_and_regimes_have_codes() -> None:
    watch = eigenlens.integrations.watch(small(), PROBE, 1)
    reading = watch.read(7, float("nan"))
    assert reading is not None
    flat = watch.numbers(reading)
    assert {"eigenlens/layer_1/gap", "eigenlens/layer_1/cosine", "eigenlens/alarms"} <= set(flat)
    assert all(isinstance(v, (int, float)) and math.isfinite(v) for v in flat.values())
    json.dumps(flat, allow_nan=False)
    json.dumps(reading.to_dict(), allow_nan=False)
    assert [REGIME_CODES[name] for name in REGIMES] == [0, 1, 2, 3, 4]
    assert flat["eigenlens/layer_0/regime"] == REGIME_CODES[reading.layers[0].regime]


def test_a_shared_layer_has_one_spectrum_and_tokens_at_every_step() -> None:
    torch.manual_seed(0)
    size = {"vocab_size": 32, "embedding_size": 16, "hidden_size": 16, "intermediate_size": 32}
    depth = {"num_hidden_layers": 3, "num_attention_heads": 2, "max_position_embeddings": 16}
    model = AlbertForMaskedLM(AlbertConfig(**size, **depth, initializer_range=0.2))
    reading = eigenlens.integrations.watch(model, PROBE, strict=True).read(0)
    assert reading is not None
    assert list(reading.tokens) == ["layer_0_step_0", "layer_0_step_1", "layer_0_step_2"]
    (layer,) = reading.layers
    assert layer.order == "residual"
    if layer.alignment_rate is not None:
        keys = sorted({round(abs(1 + v), 5) for v in layer.eigenvalues}, reverse=True)
        assert layer.alignment_rate == pytest.approx(keys[1] / keys[0], abs=1e-4)
        assert layer.disagreement_rate == pytest.approx(1 / keys[0], abs=1e-4)


def test_readings_come_every_so_many_steps_and_go_to_the_log() -> None:
    rows: list[tuple[int, dict[str, float]]] = []
    make = lambda m: Watch(m, PROBE, 3, log=lambda n, s: rows.append((s, n)))  # noqa: E731
    losses, watch = train(small(), 7, make)
    assert watch is not None
    assert [r.step for r in watch.readings] == [3, 6] == [step for step, _ in rows]
    assert watch.readings[0].loss == pytest.approx(losses[2])
    assert "eigenlens/layer_0/gap" in rows[0][1]


@pytest.mark.parametrize(
    ("probe", "ids"),
    [
        (torch.tensor([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array([1, 2, 3]), [[1, 2, 3]]),
        ([torch.tensor([1, 2]), torch.tensor([3])], [[1, 2], [3]]),
        (
            {"input_ids": [[1, 2, 0], [3, 4, 5]], "attention_mask": [[1, 1, 0], [1, 1, 1]]},
            [[1, 2], [3, 4, 5]],
        ),
    ],
)
def test_probes_are_ids_of_any_make(probe: Any, ids: list[list[int]]) -> None:
    assert probe_ids(probe) == ids


@pytest.mark.parametrize(
    ("probe", "message"),
    [
        ([], "no tokens"),
        ("text", "no tokens"),
        (["some text", "more"], "must be token ids"),
        ({"labels": [1]}, "without input_ids"),
        ([[1], [2]], "one token"),
    ],
)
def test_probes_that_are_none(probe: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        probe_ids(probe)


def test_wrong_use_is_told_before_the_training() -> None:
    with pytest.raises(OptionError, match="every is 0"):
        eigenlens.integrations.watch(small(), PROBE, 0)
    with pytest.raises(OptionError, match="every is 0"):
        EigenlensCallback(PROBE, every=0)
    with pytest.raises(OptionError, match="ids are 0 to 31"):
        eigenlens.integrations.watch(small(), [[1, 99]])
    with pytest.raises(OptionError, match="has no layer 9"):
        eigenlens.integrations.watch(small(), PROBE, layers=[9])
    with pytest.raises(EigenlensError):
        eigenlens.integrations.watch(torch.nn.Linear(2, 2), PROBE)


# -- nothing is changed ---------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*checkpointing:FutureWarning")
@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
def test_training_is_the_same_to_the_bit_with_a_watch(checkpointing: bool) -> None:
    """Dropout draws from the random state in every step; a part stays in evaluation."""
    models = [small(dropout=0.2) for _ in range(2)]
    for model in models:
        model.transformer.h[0].mlp.eval()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
    alone, _ = train(models[0], 6)
    after = (torch.get_rng_state(), random.getstate())
    watched, watch = train(models[1], 6, lambda m: Watch(m, PROBE, 2, strict=True))
    assert watch is not None
    assert [r.step for r in watch.readings] == [2, 4, 6]
    assert watched == alone
    assert same(*models)
    assert torch.equal(torch.get_rng_state(), after[0])
    assert random.getstate() == after[1]
    assert not models[1].transformer.h[0].mlp.training
    assert models[1].transformer.h[0].attn.training
    hooks = [sum(len(m._forward_hooks) for m in model.modules()) for model in models]
    assert hooks[0] == hooks[1]


def test_the_comparison_to_the_bit_sees_a_watch_that_draws(monkeypatch: Any) -> None:
    read = Watch._read

    def draws(self: Watch, *args: Any) -> Reading:
        torch.rand(1)
        return read(self, *args)

    monkeypatch.setattr(Watch, "_read", draws)
    alone, _ = train(small(dropout=0.2), 4)
    watched, _ = train(small(dropout=0.2), 4, lambda m: Watch(m, PROBE, 2))
    assert alone != watched


def test_a_reading_that_fails_puts_everything_back(monkeypatch: Any) -> None:
    model = small(dropout=0.2)
    model.transformer.h[1].eval()
    modes = [m.training for m in model.modules()]
    watch = Watch(model, PROBE, 1)

    def fails(*args: Any) -> Any:
        torch.rand(3)
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr("eigenlens.integrations.watching.read_spectra", fails)
    state = torch.get_rng_state()
    assert watch.step(1) is None
    assert watch.step(2) is None
    assert torch.equal(torch.get_rng_state(), state)
    assert [m.training for m in model.modules()] == modes
    assert len(watch.problems) == 1
    assert "broken on purpose" in watch.problems[0]
    watch.strict = True
    with pytest.raises(RuntimeError, match="broken on purpose"):
        watch.step(3)


# -- wrappers and precision -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_is_read_through_its_own_modules() -> None:
    plain, inner = small(), small()
    compiled = torch.compile(inner, backend="eager")
    alone, _ = train(plain, 3)
    watched, watch = train(compiled, 3, lambda m: Watch(m, PROBE, 1, strict=True))
    assert watch is not None
    assert len(watch.readings) == 3
    assert watched == pytest.approx(alone, rel=1e-4)
    truth = eigenlens.spectrum(inner, k=1).layers[0].eigenvalues[0]
    assert watch.readings[-1].layers[0].eigenvalues[0] == pytest.approx(complex(truth), abs=1e-4)


def test_mixed_precision_is_off_while_the_model_is_read() -> None:
    def cast() -> Any:
        return torch.autocast("cpu", dtype=torch.bfloat16)

    models = [small(), small()]
    alone, _ = train(models[0], 4, around=cast)
    watched, watch = train(models[1], 4, lambda m: Watch(m, PROBE, 2, strict=True), around=cast)
    assert watched == alone
    assert same(*models)
    assert watch is not None
    exact = Watch(models[1], PROBE, 1).read(0)
    assert exact is not None
    assert watch.readings[-1].tokens == exact.tokens  # in float32 both


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_of_the_weights(dtype: Any) -> None:
    reading = Watch(small().to(dtype), PROBE, strict=True).read(0)
    assert reading is not None
    assert len(reading.layers) == len(reading.tokens) == 2
    assert not reading.problems


@pytest.mark.filterwarnings("ignore:.*checkpointing:FutureWarning")
def test_a_lora_model_is_read_as_it_runs() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["c_proj", "c_attn"], fan_in_fan_out=True)
    model = peft.get_peft_model(small(), config)
    watch = Watch(model, PROBE, strict=True)
    before = watch.read(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.normal_()
    after = watch.read(1)
    assert before is not None
    assert after is not None
    truth = eigenlens.spectrum(model.merge_and_unload(), k=1).layers[0]
    assert after.layers[0].spectral_norm == pytest.approx(truth.spectral_norm, rel=1e-4)
    assert after.layers[0].spectral_norm > 1.5 * before.layers[0].spectral_norm


def test_ddp_is_unwrapped_and_only_process_zero_reads(monkeypatch: Any, tmp_path: Path) -> None:
    distributed = torch.distributed
    distributed.init_process_group("gloo", f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        model = torch.nn.parallel.DistributedDataParallel(small())
        watch = Watch(model, PROBE, 1, strict=True)
        assert watch.step(1) is not None
        monkeypatch.setattr(distributed, "get_rank", lambda *a: 1)
        assert watch.step(2) is None
        assert Watch(model, PROBE, 1, strict=True).step(3) is None
    finally:
        distributed.destroy_process_group()


def test_sharded_weights_are_refused_by_name() -> None:
    model = small()
    model.transformer.wte.weight.ds_id = 0  # what DeepSpeed's ZeRO-3 leaves on a parameter
    with pytest.raises(OptionError, match=r"sharded over processes.*transformer\.wte\.weight"):
        Watch(model, PROBE)


def test_weights_that_are_not_finite_are_an_alarm_and_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = small()
    watch = Watch(model, PROBE, 1, strict=True)
    with torch.no_grad():
        model.transformer.h[1].attn.c_proj.weight[0, 0] = float("nan")
    with caplog.at_level(logging.WARNING, "eigenlens.watch"):
        reading = watch.step(1, float("inf"))
        watch.step(2, float("inf"))
    assert reading is not None
    assert [layer.name for layer in reading.layers] == ["layer_0"]
    assert reading.loss is None
    (alarm,) = watch.alarms
    assert (alarm.step, alarm.kind, alarm.where) == (1, "not_finite", "layer_1")
    assert "h.1.attn.c_proj.weight" in alarm.message
    assert sum("NaN" in r.message for r in caplog.records) == 1
    json.dumps([a.to_dict() for a in watch.alarms], allow_nan=False)


def test_states_that_are_not_finite_are_an_alarm() -> None:
    model = small()
    watch = Watch(model, PROBE, 1, strict=True)
    watch.step(1)
    with torch.no_grad():
        model.transformer.h[0].mlp.c_fc.weight.fill_(float("inf"))
    watch.step(2)
    assert [(a.step, a.kind, a.where) for a in watch.alarms] == [(2, "not_finite", "probe")]


def test_a_model_whose_body_cannot_run_still_has_its_spectra(monkeypatch: Any) -> None:
    watch = Watch(small(), PROBE, 1)

    def other_f(*args: Any) -> Any:
        raise NumericsError("layer 0: the model does not apply the F of this checkpoint")

    monkeypatch.setattr("eigenlens.integrations.watching.check_circuits", other_f)
    for step in (1, 2):
        reading = watch.step(step)
        assert reading is not None
        assert len(reading.layers) == 2
        assert not reading.tokens
    assert len(watch.problems) == 1
    assert not watch.alarms


# -- the Trainer ----------------------------------------------------------------------------------


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 64

    def __getitem__(self, i: int) -> dict[str, Any]:
        ids = torch.randint(32, (10,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": ids, "labels": ids}


class Logger(TrainerCallback):  # type: ignore[misc]
    """What a reporting integration sees."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.rows.append(dict(logs))


def run_trainer(folder: Path, callbacks: list[Any], **options: Any) -> tuple[Any, Any]:
    model = small(dropout=0.1)
    arguments = TrainingArguments(
        str(folder),
        max_steps=6,
        per_device_train_batch_size=4,
        logging_steps=2,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        save_strategy="no",
        seed=5,
        **options,
    )
    trainer = Trainer(model, arguments, train_dataset=Rows(), callbacks=callbacks)
    trainer.pop_callback(next(c for c in trainer.callback_handler.callbacks if "Printer" in str(c)))
    trainer.train()
    return trainer, model


def own_rows(trainer: Any) -> list[dict[str, Any]]:
    return [
        {k: v for k, v in row.items() if "runtime" not in k and "per_second" not in k}
        for row in trainer.state.log_history
        if not any(k.startswith("eigenlens/") for k in row)
    ]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The rows of a training without a watch."""
    return own_rows(run_trainer(tmp_path_factory.mktemp("alone"), [])[0])


def test_the_callback_logs_through_the_trainers_loggers(tmp_path: Path) -> None:
    before, after = Logger(), Logger()
    callback = EigenlensCallback(PROBE, every=2, strict=True)
    assert isinstance(callback, TrainerCallback)
    options = {"gradient_accumulation_steps": 2, "bf16": True}
    trainer, model = run_trainer(tmp_path, [before, callback, after], **options)
    without, other = run_trainer(tmp_path, [], **options)
    assert same(model, other)
    assert own_rows(trainer) == own_rows(without)
    mine = [row for row in trainer.state.log_history if "eigenlens/layer_1/gap" in row]
    assert [row["step"] for row in mine] == [0, 2, 4, 6]
    for logger in (before, after):
        assert [r for r in logger.rows if "eigenlens/alarms" in r] == [
            {k: v for k, v in row.items() if k != "step"} for row in mine
        ]
    trainer.state.save_to_json(str(tmp_path / "state.json"))
    json.loads((tmp_path / "state.json").read_text(), parse_constant=pytest.fail)
    assert [r.step for r in callback.readings] == [0, 2, 4, 6]
    assert callback.alarms == []


def test_a_swallowed_row_of_the_trainer_is_seen(
    tmp_path: Path, monkeypatch: Any, alone: list[dict[str, Any]]
) -> None:
    """The oracle of the test above: without putting `should_log` back, the loss is not logged."""

    def emit(self: Any, reading: Any, args: Any, state: Any, control: Any) -> None:
        from eigenlens.integrations.callback import _calling_handler

        _calling_handler().on_log(args, state, control, {})

    monkeypatch.setattr(EigenlensCallback, "_emit", emit)
    trainer, _ = run_trainer(tmp_path, [EigenlensCallback(PROBE, every=2)])
    assert own_rows(trainer) != alone


def test_other_processes_do_not_read(tmp_path: Path) -> None:
    class Second(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            state.is_world_process_zero = False

    callback = EigenlensCallback(PROBE, every=2)
    trainer, _ = run_trainer(tmp_path, [Second(), callback])
    assert callback.readings == []
    assert not any("eigenlens/alarms" in row for row in trainer.state.log_history)


def test_a_model_that_cannot_be_watched_is_trained_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    callback = EigenlensCallback([[1, 99]], every=2)  # no such token
    with caplog.at_level(logging.WARNING, "eigenlens.watch"):
        trainer, _ = run_trainer(tmp_path, [callback])
    assert trainer.state.global_step == 6
    assert sum("is not watched" in r.message for r in caplog.records) == 1
    with pytest.raises(OptionError, match="ids are 0 to 31"):
        run_trainer(tmp_path, [EigenlensCallback([[1, 99]], every=2, strict=True)])


def test_a_logger_that_fails_does_not_stop_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, alone: list[dict[str, Any]]
) -> None:
    class Broken(TrainerCallback):  # type: ignore[misc]
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kw: Any) -> None:
            if "eigenlens/alarms" in logs:
                raise ValueError("no strings please")

    with caplog.at_level(logging.WARNING, "eigenlens.watch"):
        trainer, _ = run_trainer(tmp_path, [Broken(), EigenlensCallback(PROBE, every=2)])
    assert trainer.state.global_step == 6
    assert any("no strings please" in r.message for r in caplog.records)
    assert own_rows(trainer) == alone


def test_numbers_of_the_guard_are_put_back_in_turn() -> None:
    model = small()
    np.random.seed(1)  # noqa: NPY002
    expected = np.random.RandomState(1).rand()
    with untouched_room.untouched(torch, model):
        np.random.rand(4)  # noqa: NPY002
        random.random()
        assert not torch.is_grad_enabled()
        assert not model.training
    assert model.training
    assert np.random.rand() == expected  # noqa: NPY002


@pytest.mark.parametrize(
    ("probe", "message"),
    [
        ([[1.7, 2]], "token ids"),
        ({"input_ids": [[1, 2], [3]], "attention_mask": [[1, 1]]}, "attention_mask"),
        ({"input_ids": [[1, 2]], "attention_mask": 1}, "attention_mask"),
    ],
)
def test_probes_are_not_rounded_and_masks_have_their_shape(probe: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        probe_ids(probe)


def test_wrong_steps_models_and_names_of_options_are_told() -> None:
    with pytest.raises(OptionError, match="a int is no live model"):
        eigenlens.integrations.watch(3)
    watched = eigenlens.integrations.watch(small())
    for step in ("x", None, 2.5):
        with pytest.raises(OptionError, match="number of steps so far"):
            watched.step(cast(Any, step))
    with pytest.raises(OptionError, match="no option 'evry'"):
        eigenlens.integrations.EigenlensCallback(evry=3)
