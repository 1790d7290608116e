"""Random times while training: a draw for each row, one solve, off in evaluation."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Trainer, TrainingArguments

import floater
from floater.attachments.hooks.lengths import ForwardLengths
from floater.attachments.jitter import JitterDraws
from floater.attachments.stack_encodings import StackEncodings
from floater.attachments.token_positions import IndexRange, TokenPositions
from floater.errors import ArgumentError, ConfigError

from .attach_models import MOVING, batch, logits, make

NAMES = ("bert", "roberta", "gpt2", "llama", "marian", "t5")


def drawn(jitter: floater.TimeJitter, rows: int, length: int, draws: int = 1) -> Tensor:
    """Times [draws, rows, length] of consecutive positions, Δ = 1."""
    sequence = JitterDraws()
    positions = TokenPositions(IndexRange(0, length), length)
    times = []
    for _ in range(draws):
        moved = sequence.next(jitter, rows).move(positions, 1.0).times
        assert moved is not None
        times.append(moved.view(rows, length))
    return torch.stack(times)


def test_every_row_has_a_draw_of_its_own_and_stretch_is_log_uniform() -> None:
    times = drawn(floater.TimeJitter(stretch=4.0), 500, 6, draws=4)
    steps = times.diff(dim=2)
    torch.testing.assert_close(steps, steps[..., :1].expand_as(steps))
    assert not times[..., 0].any()
    factors = steps[..., 0].flatten()
    assert len(factors.unique()) == 2000
    assert 1 <= factors.min() < 1.01
    assert 3.96 < factors.max() <= 4
    uniform = factors.log() / torch.tensor(4.0, dtype=torch.float64).log()
    for quantile in (0.25, 0.5, 0.75):
        assert abs(uniform.quantile(quantile) - quantile) < 0.04


def test_offset_share_and_local_shifts() -> None:
    offset = drawn(floater.TimeJitter(offset=50.0), 400, 3)[0, :, 0]
    assert 0 <= offset.min() < 2
    assert 48 < offset.max() <= 50
    shared = drawn(floater.TimeJitter(stretch=4.0, offset=9.0, share=0.25), 2000, 3)[0]
    plain = (shared == torch.arange(3)).all(1)
    assert 0.7 < plain.double().mean() < 0.8
    local = drawn(floater.TimeJitter(local=0.4), 300, 9)[0]
    shifts = local - torch.arange(9)
    assert shifts[:, 1:].min() < -0.35
    assert 0.35 < shifts.max() <= 0.4
    assert local.min() == 0  # no time lies before the start
    assert (local.diff(dim=1) > 0).all()


@pytest.mark.parametrize("rotating", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_training_equals_a_row_by_row_reference(name: str, rotating: bool) -> None:
    """Each row alone, at the times that were drawn for it, gives the same as the batch."""
    model, inputs = make(name).double(), batch(name)
    inputs["attention_mask"][:] = 1
    inputs["input_ids"] = inputs["input_ids"].clamp(min=3)
    jitter = floater.TimeJitter(stretch=3.0, offset=5.0)
    config = MOVING.model_copy(update={"rotating": rotating})
    attached = floater.attach(model, config, positions="replace", jitter=jitter)
    model.train()
    twin = copy.deepcopy(attached.draws)
    flows: list[Any] = list(attached.encoders.values())
    solves = [flow.solves for flow in flows]
    together = logits(model, inputs)
    assert [flow.solves for flow in flows] == [count + 1 for count in solves]
    draw = twin.next(jitter, 3)
    attached.jitter = None
    for row in range(3):
        alone = {key: value[row : row + 1] for key, value in inputs.items()}

        def times(key: str, row: int = row) -> Tensor:
            length = inputs[key].shape[1]
            moved = draw.move(TokenPositions(IndexRange(0, length), length), attached.delta).times
            assert moved is not None
            return moved.view(3, length)[row]

        at: dict[str, Any] = {"times": times("input_ids")}
        if "decoder_input_ids" in inputs:
            at = {"source": times("input_ids"), "target": times("decoder_input_ids")}
        with attached.at(**at):
            single = logits(model, alone)
        torch.testing.assert_close(together[row : row + 1], single, rtol=1e-6, atol=1e-6)


def test_evaluation_and_custom_times_are_not_moved() -> None:
    model, inputs = make("bert"), batch("bert")
    attached = floater.attach(model, MOVING)
    plain = logits(model, inputs)
    attached.jitter = floater.TimeJitter(stretch=4.0)
    assert torch.equal(logits(model, inputs), plain)
    model.train()
    moved = logits(model, inputs)
    assert (moved - plain).abs().max() > 1e-3
    assert not torch.equal(logits(model, inputs), moved)
    with attached.at(0.1 * torch.arange(11, dtype=torch.float64)):
        torch.testing.assert_close(logits(model, inputs), plain, rtol=1e-4, atol=1e-4)
    drawn_before = attached.draws.count
    with torch.no_grad():
        torch.testing.assert_close(logits(model, inputs), plain)
    assert attached.draws.count == drawn_before


@pytest.mark.parametrize("name", ["llama", "marian"])
def test_generation_in_train_mode_is_that_of_evaluation(name: str) -> None:
    model, inputs = make(name), batch(name)
    attached = floater.attach(model, MOVING, jitter=floater.TimeJitter(stretch=4.0, local=0.3))
    settings: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "num_beams": 2}
    prompt = {"input_ids": inputs["input_ids"].clamp(min=3)}
    expected = model.generate(**prompt, **settings)
    model.train()
    assert torch.equal(model.generate(**prompt, **settings), expected)
    assert attached.draws.count == 0


@pytest.mark.parametrize("tuples", [False, True])
@pytest.mark.parametrize(
    "jitter",
    [
        floater.TimeJitter(stretch=4.0, offset=3.0),
        floater.TimeJitter(stretch=4.0, share=0.5, gaps=2, until=99),
        floater.TimeJitter(stretch=4.0, local=0.4),
    ],
)
def test_an_encoder_that_is_called_first_shares_its_draw(
    jitter: floater.TimeJitter, tuples: bool
) -> None:
    model, inputs = make("marian").double(), batch("marian")
    floater.attach(model, MOVING, positions="replace", jitter=jitter)
    model.train()
    moved: list[dict[str, Any]] = []
    settle = ForwardLengths.settle

    def spy(self: ForwardLengths, own: Any, source: Any, *more: Any, **named: Any) -> Any:
        moved.append({"own": own, "source": source})
        return settle(self, own, source, *more, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ForwardLengths, "settle", spy)
        encoded = model.get_encoder()(inputs["input_ids"], inputs["attention_mask"])
        given: Any = (encoded[0],) if tuples else encoded
        targets = inputs["decoder_input_ids"]
        masks = {"attention_mask": inputs["attention_mask"]}
        model(encoder_outputs=given, decoder_input_ids=targets, **masks).logits.sum().backward()
    first, second = moved
    source = first["own"].times.view(len(targets), -1)
    assert torch.equal(second["source"].times.view(len(targets), -1), source)
    if not jitter.local and not jitter.gaps:  # then a row has one distance between its tokens
        target = second["own"].times.view(targets.shape)
        torch.testing.assert_close(target[:, 0], source[:, 0])
        torch.testing.assert_close(target.diff(dim=1)[:, 0], source.diff(dim=1)[:, 0])


def test_an_encoder_that_drew_for_another_jitter_is_not_followed() -> None:
    model, inputs = make("marian"), batch("marian")
    attached = floater.attach(model, MOVING, jitter=floater.TimeJitter(gaps=2, until=50))
    model.train()
    encoded = model.get_encoder()(inputs["input_ids"])
    attached.jitter = floater.TimeJitter(stretch=2.0)
    targets = inputs["decoder_input_ids"]
    with pytest.warns(UserWarning, match="drew new ones for the source"):
        assert model(encoder_outputs=encoded, decoder_input_ids=targets).logits.isfinite().all()


def test_a_decoder_says_that_it_does_not_know_the_times_of_the_encoder() -> None:
    model, inputs = make("marian"), batch("marian")
    attached = floater.attach(model, MOVING, jitter=floater.TimeJitter(stretch=4.0))
    targets = inputs["decoder_input_ids"]

    def call(states: Tensor) -> None:
        model(encoder_outputs=(states,), decoder_input_ids=targets)

    model.train()
    states = model.get_encoder()(inputs["input_ids"])[0]
    call(states)  # its own output: no warning, which would be an error
    with pytest.warns(UserWarning, match="pass the encoder's output on unchanged"):
        call(states.clone())
    attached.jitter = None
    call(states.clone())
    attached.detach()
    decoder = floater.Sites("qkv", stacks=("decoder",))
    floater.attach(model, MOVING, sites=decoder, jitter=floater.TimeJitter(stretch=4.0))
    call(states.clone())  # the encoder has no encodings, so there are no other times


def test_an_attachment_shows_its_jitter_and_how_often_it_drew() -> None:
    model, inputs = make("bert"), batch("bert")
    attached = floater.attach(model, MOVING, jitter=floater.TimeJitter(stretch=4.0))
    model.train()(**inputs)
    assert "jitter=TimeJitter(stretch=4.0" in repr(attached)
    assert "JitterDraws(count=1)" in repr(attached)


@pytest.mark.parametrize(("name", "accumulate"), [("bert", 1), ("llama", 2), ("marian", 1)])
def test_transformers_own_trainer_resumes_to_the_same_bits(
    name: str, accumulate: int, tmp_path: Path
) -> None:
    inputs = batch(name)
    ids = inputs["input_ids"].clamp(min=3)
    rows = [{"input_ids": row, "labels": row} for row in ids.repeat(4, 1)]
    jitter = floater.TimeJitter(stretch=4.0, offset=2.0, local=0.2, share=0.7)

    def trained(resume: str | None) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = make(name)
        floater.attach(model, MOVING, positions="replace", jitter=jitter)
        arguments = TrainingArguments(
            str(tmp_path),
            max_steps=4,
            save_steps=2,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=accumulate,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            seed=7,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=rows)
        trainer.train(resume_from_checkpoint=resume)
        return dict(model.state_dict())

    whole = trained(None)
    resumed = trained(str(tmp_path / "checkpoint-2"))
    assert whole.keys() == resumed.keys()
    assert [name for name in whole if not torch.equal(whole[name], resumed[name])] == []


def test_the_global_random_state_is_left_alone_and_a_seed_determines_the_draws() -> None:
    results = []
    for seed in (3, 3, 4):
        model, inputs = make("bert"), batch("bert")
        torch.manual_seed(11)
        floater.attach(model, MOVING, jitter=floater.TimeJitter(stretch=4.0))
        model.train()
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        results.append(logits(model, inputs).detach())
        assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_gradients_are_exact() -> None:
    model, inputs = make("bert").double(), batch("bert")
    jitter = floater.TimeJitter(stretch=3.0, local=0.3)
    attached = floater.attach(model, MOVING, jitter=jitter)
    model.train()
    start = copy.deepcopy(attached.draws)
    encoder: Any = attached.encoder
    model.zero_grad()
    logits(model, inputs).square().mean().backward()
    direction = torch.randn_like(encoder.dynamics.second.weight)
    slope = float((encoder.dynamics.second.weight.grad * direction).sum())
    values = []
    for step in (1e-5, -1e-5):
        with torch.no_grad():
            encoder.dynamics.second.weight += step * direction
        attached.draws = copy.deepcopy(start)
        values.append(float(logits(model, inputs).detach().square().mean()))
        with torch.no_grad():
            encoder.dynamics.second.weight -= step * direction
    assert abs((values[0] - values[1]) / 2e-5 - slope) < 1e-4 * abs(slope) + 1e-7


def test_gradient_checkpointing_keeps_the_draw() -> None:
    gradients = []
    for checkpointing in (False, True):
        model, inputs = make("llama"), batch("llama")
        torch.manual_seed(11)
        attached = floater.attach(model, MOVING, jitter=floater.TimeJitter(stretch=3.0))
        model.train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        torch.manual_seed(0)
        logits(model, inputs, use_cache=False).square().mean().backward()
        gradients.append([parameter.grad.clone() for parameter in attached.parameters()])  # type: ignore[union-attr]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_jitter_is_saved_with_the_model_and_continued_after_a_checkpoint(tmp_path: Path) -> None:
    model, inputs = make("bert"), batch("bert")
    jitter = floater.TimeJitter(stretch=4.0, share=0.5)
    attached = floater.attach(model, MOVING, jitter=jitter)
    floater.save_pretrained(model, tmp_path / "saved")
    assert "random: `TimeJitter(stretch=4.0, " in (tmp_path / "saved" / "README.md").read_text()
    again: Any = floater.from_pretrained(type(model), tmp_path / "saved")
    loaded = floater.attachment(again)
    assert loaded is not None
    assert loaded.jitter == jitter
    model.train()
    again.train()
    logits(model, inputs)
    again.load_state_dict(model.state_dict())
    assert torch.equal(logits(model, inputs), logits(again, inputs))
    weights = {name: value for name, value in model.state_dict().items() if "draws" not in name}
    again.load_state_dict(weights)  # saved before draws were part of the weights
    assert loaded.draws.count == attached.draws.count
    floater.save_pretrained(model, tmp_path / "trained")
    fresh = floater.attachment(floater.from_pretrained(type(model), tmp_path / "trained"))
    assert fresh is not None
    assert fresh.draws.count == 0


def test_large_seeds_survive_a_checkpoint() -> None:
    jitter, draws, again = floater.TimeJitter(stretch=4.0), JitterDraws(), JitterDraws()
    with torch.random.fork_rng():
        torch.manual_seed(2**64 - 5)
        draws.next(jitter, 3)
    again.load_state_dict(draws.state_dict())
    assert torch.equal(draws.next(jitter, 3).of_rows(), again.next(jitter, 3).of_rows())


def test_jitter_that_cannot_be_is_refused() -> None:
    model = make("bert")
    with pytest.raises(ArgumentError, match="`jitter` needs an encoder that serves any time"):
        floater.attach(model, floater.LearnedConfig(), jitter=floater.TimeJitter(stretch=2.0))
    with pytest.raises(ArgumentError, match="but the attachment has a NoPositionConfig"):
        floater.attach(model, floater.NoPositionConfig(), jitter=floater.TimeJitter(stretch=2.0))
    assert floater.attachment(model) is None
    attached = floater.attach(model, MOVING)
    with pytest.raises(ArgumentError, match="`jitter` must be a TimeJitter or None, but is 3"):
        attached.jitter = 3  # type: ignore[assignment]
    for wrong in (
        {"stretch": 0.5},
        {"stretch": 1e30},
        {"local": 0.5},
        {"share": 0.0},
        {"offset": -1.0},
    ):
        with pytest.raises(ConfigError):
            floater.TimeJitter(**wrong)


@pytest.mark.parametrize("name", ["bert", "marian", "llama", "gpt2"])
@pytest.mark.parametrize("autocast", [False, True])
def test_biases_that_join_the_encodings_get_their_gradients(
    name: str, autocast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A projection's own bias is added to the polynomials, which must change nothing."""
    found = []
    for joined in (True, False):
        if not joined:
            monkeypatch.setattr(StackEncodings, "_whole_bias", lambda self, point: None)
        torch.manual_seed(0)
        model, inputs = make(name), batch(name)
        torch.manual_seed(11)
        floater.attach(model, MOVING, jitter=floater.TimeJitter(stretch=3.0))
        model.train()
        torch.manual_seed(0)
        if not autocast:
            model.double()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output = logits(model, inputs)
        output.float().square().mean().backward()
        grads = [weight.grad for weight in model.parameters() if weight.grad is not None]
        found.append([output.detach().float(), *(gradient.clone() for gradient in grads)])
    assert len(found[0]) == len(found[1])
    largest = max(float(gradient.abs().max()) for gradient in found[1][1:])
    tolerance = 0.05 if autocast else 1e-6
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * largest)
