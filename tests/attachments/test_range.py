"""The range of times in training: recorded, saved, and what happens past it."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor
from transformers import AutoModelForMaskedLM, Trainer, TrainingArguments

import floater
from floater.attachments.token_positions import IndexRange, TokenPositions
from floater.errors import ArgumentError, AttachmentError, LengthError, RangeWarning, SavedError
from floater.files import record_hashes

from . import attach_models
from .attach_models import MOVING, PAD, VOCABULARY, logits, make

DELTA = MOVING.delta


def step(model: Any, inputs: dict[str, Any]) -> None:
    """A backward pass in training."""
    model.train()
    logits(model, inputs, **({"use_cache": False} if "past" in inputs else {})).sum().backward()
    model.eval()


def padded(lengths: tuple[int, ...], width: int, padding: int = PAD) -> dict[str, Tensor]:
    """Rows of these lengths, padded to a width."""
    torch.manual_seed(3)
    ids = torch.randint(3, VOCABULARY, (len(lengths), width))
    mask = (torch.arange(width) < torch.tensor(lengths).unsqueeze(1)).long()
    return {"input_ids": ids.where(mask.bool(), padding), "attention_mask": mask}


def ranged(name: str, tokens: int, **settings: Any) -> tuple[Any, Any]:
    """A model with an attachment that counts as trained on inputs of so many tokens."""
    model = make(name).double()
    settings = {"positions": "replace", **settings}
    attached = floater.attach(model, settings.pop("config", MOVING), **settings)
    attached.trained_range = DELTA * (tokens - 1)
    return model, attached


# Recording ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "opt"])
def test_training_records_the_last_token_and_not_its_padding(name: str) -> None:
    model = make(name)
    attached = floater.attach(model, MOVING, positions="replace")
    stack = attached.context.plan.stacks[0].name
    assert attached.trained_range == {}
    with torch.no_grad():
        logits(model, padded((9, 8), 12))
        model.train()
        logits(model, padded((9, 8), 12))
    assert attached.trained_range == {}, "nothing is learned without gradients"
    for lengths, width, last in (((5, 9), 12, 8), ((3, 4), 9, 8), ((12, 7), 12, 11)):
        step(model, padded(lengths, width))
        assert attached.trained_range == {stack: last * DELTA}
    with attached.disabled():
        step(model, padded((20,), 20))
    assert attached.trained_range == {stack: 11 * DELTA}
    with attached.at(torch.arange(6) * 3.7):
        step(model, padded((6, 6), 6))
    assert attached.trained_range == {stack: 5 * 3.7}
    assert f"TrainedTimes({stack}=18.5)" in repr(attached)


@pytest.mark.parametrize("name", ["marian", "t5", "m2m_100"])
def test_source_and_target_have_ranges_of_their_own(name: str) -> None:
    model = make(name)
    attached = floater.attach(model, MOVING, positions="replace")
    target = padded((6, 4), 8, model.config.pad_token_id)["input_ids"]
    step(model, {**padded((5, 9), 12, model.config.pad_token_id), "decoder_input_ids": target})
    assert attached.trained_range == {"encoder": 8 * DELTA, "decoder": 5 * DELTA}


def test_random_times_count_as_they_were_drawn() -> None:
    model = make("marian")
    jitter = floater.TimeJitter(stretch=4.0, offset=7.0, local=0.3)
    attached = floater.attach(model, MOVING, positions="replace", jitter=jitter)
    inputs = {**padded((5, 9, 11), 12), "decoder_input_ids": padded((6, 4, 8), 8)["input_ids"]}
    twin = copy.deepcopy(attached.draws)
    expected = {"encoder": 0.0, "decoder": 0.0}
    for _ in range(4):
        step(model, inputs)
        draw = twin.next(jitter, 3)
        for stack, lengths, width in (("encoder", (5, 9, 11), 12), ("decoder", (6, 4, 8), 8)):
            times = draw.move(TokenPositions(IndexRange(0, width), width), DELTA).times
            assert times is not None
            rows = times.view(3, width)
            ends = [float(rows[row, length - 1]) for row, length in enumerate(lengths)]
            expected[stack] = max(expected[stack], *ends)
        assert attached.trained_range == expected


@pytest.mark.slow
def test_compiled_training_is_recorded() -> None:
    model = make("bert", num_hidden_layers=1)
    attached = floater.attach(model, floater.RotaryConfig(), positions="replace")
    torch._dynamo.reset()
    compiled: Any = torch.compile(model.train(), fullgraph=True, backend="eager", dynamic=True)
    for length in (6, 9, 5):
        ids = torch.randint(3, VOCABULARY, (2, length))
        compiled(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.sum().backward()
    assert attached.trained_range == {"encoder": 8 * DELTA}


def test_the_range_is_exact_in_half_precision_and_in_copies() -> None:
    model = make("bert")
    attached = floater.attach(model, MOVING)
    step(model, padded((8, 5), 8))
    again: Any = floater.attachment(copy.deepcopy(model).bfloat16())
    step(model, padded((9, 5), 9))
    assert again.trained_range == {"encoder": 7 * DELTA}
    assert attached.trained_range == {"encoder": 8 * DELTA}


def test_a_range_can_be_set_by_hand() -> None:
    attached = floater.attach(make("marian"), MOVING)
    attached.trained_range = 3
    assert attached.trained_range == {"encoder": 3.0, "decoder": 3.0}
    attached.trained_range = {"decoder": 2.5}
    assert attached.trained_range == {"decoder": 2.5}
    attached.trained_range = None
    assert attached.trained_range == {}
    for wrong in (-1.0, float("nan"), "far", True, {"encoder": float("inf")}):
        with pytest.raises(ArgumentError, match="`trained_range` must be the largest time"):
            attached.trained_range = wrong  # type: ignore[assignment]
    with pytest.raises(ArgumentError, match=r"must name stacks .*\(encoder, decoder\), but names"):
        attached.trained_range = {"pooler": 3.0}


# Saving -------------------------------------------------------------------------------------------


def test_the_range_is_saved_and_shown_and_extended_by_more_training(tmp_path: Path) -> None:
    model = make("marian")
    floater.attach(model, MOVING, positions="replace", beyond="compress")
    target = {"decoder_input_ids": padded((6,), 6)["input_ids"]}
    step(model, {**padded((9,), 9), **target})
    floater.save_pretrained(model, tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert "encoder: times up to 0.8 (those of 9 tokens); decoder: times up to 0.5" in card
    assert "| times in training | those of the tokens |" in card
    assert "`compress`" in card
    back: Any = floater.from_pretrained(type(model), tmp_path)
    loaded = floater.attachment(back)
    assert loaded is not None
    assert loaded.beyond == "compress"
    assert loaded.trained_range == {"encoder": 8 * DELTA, "decoder": 5 * DELTA}
    step(back, {**padded((12,), 12), **target})
    assert loaded.trained_range == {"encoder": 11 * DELTA, "decoder": 5 * DELTA}


def as_written_before(folder: Path) -> None:
    """Turn a saved folder into one of format 2."""
    path = folder / "floater_config.json"
    description = json.loads(path.read_text())
    del description["range"], description["beyond"]
    path.write_text(json.dumps({**description, "format": 2}))
    record_hashes(folder)


def test_folders_from_before_have_an_unknown_range(tmp_path: Path) -> None:
    model = make("bert")
    floater.attach(model, MOVING, positions="replace")
    step(model, padded((9,), 9))
    floater.save_pretrained(model, tmp_path)
    as_written_before(tmp_path)
    back: Any = floater.from_pretrained(AutoModelForMaskedLM, tmp_path)
    attached = floater.attachment(back)
    assert attached is not None
    assert attached.trained_range == {}
    with torch.no_grad():
        logits(back, padded((30,), 30))  # a warning would be an error
    with pytest.raises(
        AttachmentError,
        match=r'beyond="compress" needs the range of training.*trained_range = 0.1 \* \(tokens - 1',
    ):
        attached.beyond = "compress"
    assert attached.beyond == "extrapolate"
    attached.trained_range = 0.8
    attached.beyond = "compress"
    floater.save_pretrained(back, tmp_path / "again")
    assert "9 tokens" in (tmp_path / "again" / "README.md").read_text()


def test_weights_from_before_load_into_an_attachment() -> None:
    model, other = make("bert"), make("bert")
    floater.attach(model, MOVING)
    attached = floater.attach(other, MOVING, beyond="compress")
    step(model, padded((9,), 9))
    state = model.state_dict()
    assert not other.load_state_dict(state).missing_keys
    assert attached.trained_range == {"encoder": 8 * DELTA}
    fresh = make("bert")
    attached = floater.attach(fresh, MOVING, beyond="compress")
    before = {name: tensor for name, tensor in state.items() if "trained_times" not in name}
    fresh.load_state_dict(before, strict=True)
    assert attached.trained_range == {}
    with (
        torch.no_grad(),
        pytest.raises(AttachmentError, match="saved before it was recorded; set it first"),
    ):
        logits(fresh, padded((9,), 9))


@pytest.mark.parametrize("value", [{"encoder": -1}, {"encoder": "x"}, {"other": 1.0}, [1.0], 1e999])
def test_a_damaged_range_is_refused(tmp_path: Path, value: Any) -> None:
    model = make("bert")
    floater.attach(model, MOVING)
    floater.save_pretrained(model, tmp_path)
    path = tmp_path / "floater_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "range": value}))
    record_hashes(tmp_path)
    with pytest.raises(SavedError, match=r"range of training in .* is damaged: `trained_range`"):
        floater.from_pretrained(AutoModelForMaskedLM, tmp_path)


class Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Inputs of a masked language model, each of another length."""

    def __init__(self, lengths: tuple[int, ...]) -> None:
        self._lengths = lengths

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        inputs = padded((self._lengths[row],), 20)
        labels = inputs["input_ids"].where(inputs["attention_mask"].bool(), -100)
        return {key: tensor[0] for key, tensor in {**inputs, "labels": labels}.items()}


def trainer(model: Any, folder: Path, lengths: tuple[int, ...], steps: int) -> Trainer:
    return Trainer(
        model=model,
        train_dataset=Rows(lengths),
        args=TrainingArguments(
            output_dir=str(folder),
            max_steps=steps,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            save_steps=steps,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        ),
    )


def test_the_stock_trainer_saves_and_resumes_the_range(tmp_path: Path) -> None:
    model = make("bert")
    floater.attach(model, MOVING, positions="replace")
    trainer(model, tmp_path, (4, 11, 6, 7), 1).train()
    back: Any = floater.from_pretrained(AutoModelForMaskedLM, tmp_path / "checkpoint-1")
    loaded = floater.attachment(back)
    assert loaded is not None
    assert loaded.trained_range == {"encoder": 10 * DELTA}, "both micro-batches count"
    resumed = make("bert")
    attached = floater.attach(resumed, MOVING, positions="replace")
    trainer(resumed, tmp_path, (4, 8, 6, 7), 2).train(
        resume_from_checkpoint=str(tmp_path / "checkpoint-1")
    )
    assert attached.trained_range == {"encoder": 10 * DELTA}


def test_an_attachment_that_peft_trains_has_the_range(tmp_path: Path) -> None:
    def adapted() -> Any:
        inner = make("bert")
        floater.attach(inner, MOVING, positions="replace")
        return inner

    settings = LoraConfig(r=2, target_modules=["query"], modules_to_save=["floater"])
    model: Any = get_peft_model(adapted(), settings)
    step(model, padded((9, 5), 12))
    attached = floater.attachment(model)
    assert attached is not None
    assert attached.trained_range == {"encoder": 8 * DELTA}
    model.save_pretrained(tmp_path)
    again = floater.attachment(PeftModel.from_pretrained(adapted(), str(tmp_path)))
    assert again is not None
    assert again.trained_range == {"encoder": 8 * DELTA}


def test_settings_that_change_later_are_in_checkpoints_too(tmp_path: Path) -> None:
    model = make("bert")
    attached = floater.attach(model, MOVING)
    attached.beyond, attached.jitter = "error", floater.TimeJitter(stretch=2.0)
    model.save_pretrained(tmp_path)
    back: Any = floater.from_pretrained(AutoModelForMaskedLM, tmp_path)
    again = floater.attachment(back)
    assert again is not None
    assert (again.beyond, again.jitter) == ("error", floater.TimeJitter(stretch=2.0))


# Past the range -----------------------------------------------------------------------------------


def compressed(lengths: tuple[int, ...], width: int, tokens: int) -> Tensor:
    """The times of tokens if rows of these lengths are compressed to a range of so many tokens."""
    factors = [min(1.0, (tokens - 1) / max(length - 1, 1)) for length in lengths]
    at = torch.arange(width, dtype=torch.float64) * DELTA
    return at * torch.tensor(factors, dtype=torch.float64).unsqueeze(1)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("bert", {}),
        ("bert", {"sites": "blocks"}),
        ("bert", {"config": floater.SinusoidalConfig(), "sites": "input"}),
        ("bert", {"config": floater.RotaryConfig()}),
        ("bert", {"rotary": floater.RotaryConfig()}),
        ("bert", {"config": floater.NoPositionConfig(), "rotary": floater.RotaryConfig()}),
        ("roberta", {}),
        ("mpnet", {}),
        ("gpt2", {}),
        ("llama", {"rotary": floater.RotaryConfig()}),
        ("opt", {}),
    ],
)
def test_compressing_equals_explicit_times(name: str, settings: dict[str, Any]) -> None:
    model, attached = ranged(name, 9, beyond="compress", **settings)
    lengths = (20, 6, 9, 13)
    inputs, is_token = padded(lengths, 20), padded(lengths, 20)["attention_mask"].bool()
    with torch.no_grad():
        together = logits(model, inputs)
        with attached.at(compressed(lengths, 20, 9)):
            torch.testing.assert_close(
                together[is_token], logits(model, inputs)[is_token], rtol=1e-9, atol=1e-9
            )
        for row, length in enumerate(lengths):
            alone = {key: value[row : row + 1, :length] for key, value in inputs.items()}
            torch.testing.assert_close(
                together[row, :length], logits(model, alone)[0], rtol=1e-9, atol=1e-9
            )
        attached.beyond = "extrapolate"
        attached.warned = True
        plain = logits(model, inputs)
        assert torch.equal(together[1, :6], plain[1, :6]), "rows within the range keep their bits"
        assert torch.equal(together[2, :9], plain[2, :9])
        assert not torch.allclose(together[0], plain[0], atol=1e-3)


def test_inputs_within_the_range_keep_their_bits_in_single_precision() -> None:
    model = make("bert")
    attached = floater.attach(model, MOVING, positions="replace", beyond="compress")
    attached.trained_range = 11 * DELTA
    inputs = padded((12, 7, 30), 30)
    with torch.no_grad():
        together = logits(model, inputs)
        attached.beyond, attached.warned = "extrapolate", True
        plain = logits(model, inputs)
    assert torch.equal(together[0, :12], plain[0, :12])
    assert torch.equal(together[1, :7], plain[1, :7])


@pytest.mark.parametrize("name", ["marian", "t5", "bart", "m2m_100"])
def test_source_and_target_of_a_row_are_compressed_alike(name: str) -> None:
    model, attached = ranged(name, 7, beyond="compress")
    attached.trained_range = {"encoder": 6 * DELTA, "decoder": 99.0}
    lengths = (14, 5, 9)
    padding = model.config.pad_token_id
    inputs: dict[str, Tensor] = {
        **padded(lengths, 14, padding),
        "decoder_input_ids": torch.randint(3, VOCABULARY, (3, 8)),
    }
    factors = compressed(lengths, 2, 7)[:, 1:] / DELTA
    with torch.no_grad():
        together = logits(model, inputs)
        at = {
            "source": compressed(lengths, 14, 7),
            "target": torch.arange(8).double() * DELTA * factors,
        }
        with attached.at(**at):
            torch.testing.assert_close(together, logits(model, inputs), rtol=1e-9, atol=1e-9)
        for row, length in enumerate(lengths):
            alone = {key: value[row : row + 1] for key, value in inputs.items()}
            alone["input_ids"] = alone["input_ids"][:, :length]
            alone["attention_mask"] = alone["attention_mask"][:, :length]
            torch.testing.assert_close(together[row], logits(model, alone)[0], rtol=1e-9, atol=1e-9)
        encoded = model.get_encoder()(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]
        )
        rest = {key: inputs[key] for key in ("attention_mask", "decoder_input_ids")}
        for outputs in (encoded, (encoded[0],)):
            apart = logits(model, {"encoder_outputs": outputs, **rest})
            torch.testing.assert_close(apart, together, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["marian", "t5"])
def test_beam_search_with_compressed_sources_equals_the_full_forward(name: str) -> None:
    model, attached = ranged(name, 7, beyond="compress")
    attached.trained_range = {"encoder": 6 * DELTA, "decoder": 99.0}
    inputs = padded((14, 5, 9), 14, model.config.pad_token_id)
    settings: dict[str, Any] = {
        "max_new_tokens": 9,
        "do_sample": False,
        "output_logits": True,
        "return_dict_in_generate": True,
    }
    with torch.no_grad():
        greedy = model.generate(**inputs, **settings)
        ids = greedy.sequences
        full = logits(model, {**inputs, "decoder_input_ids": ids[:, :-1]})
        for place, row in enumerate(greedy.logits):
            torch.testing.assert_close(row, full[:, place].float(), rtol=1e-6, atol=1e-6)
        beams = [
            model.generate(**inputs, num_beams=4, use_cache=use, **settings)
            for use in (True, False)
        ]
        assert torch.equal(beams[0].sequences, beams[1].sequences)
        alone = {key: value[1:2, :5] for key, value in inputs.items()}
        single = model.generate(**alone, num_beams=4, **settings).sequences[0]
        together = beams[0].sequences[1]
        assert torch.equal(single[: len(together)], together[: len(single)])


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_decoder_alone_is_compressed_without_a_cache_only(name: str) -> None:
    model, attached = ranged(name, 9, beyond="compress")
    ids = padded((6,), 6)
    settings: dict[str, Any] = {"do_sample": False, "eos_token_id": -1}
    with torch.no_grad():
        model.generate(**ids, max_new_tokens=3, **settings)  # stays within the range
        with pytest.raises(AttachmentError, match=r"needs the whole input at once.* but 9 tokens"):
            model.generate(**ids, max_new_tokens=5, **settings)
        with pytest.raises(AttachmentError, match=r"use_cache=False"):
            model.generate(**padded((12,), 12), max_new_tokens=3, **settings)
        longer = model.generate(
            **ids,
            max_new_tokens=9,
            use_cache=False,
            output_logits=True,
            return_dict_in_generate=True,
            **settings,
        )
        full = logits(model, {"input_ids": longer.sequences[:, :-1]}, use_cache=False)
        torch.testing.assert_close(longer.logits[-1], full[:, -1].float())
        attached.warned = True
        with attached.at(compressed((6,), 6, 6)[0] / 2):  # times of the caller stay as they are
            model.generate(**ids, max_new_tokens=9, **settings)


def test_an_error_names_what_was_used_and_what_was_trained() -> None:
    model, attached = ranged("bert", 9, beyond="error")
    with torch.no_grad():
        logits(model, padded((9, 5), 30))  # padding is not an input
        with pytest.raises(
            LengthError,
            match=r"An input of 13 tokens \(times up to 1.2\) lies past the range of training "
            r"\(times up to 0.8, those of 9 tokens\); shorten it, train on longer "
            r"inputs, or choose another",
        ):
            logits(model, padded((13, 5), 13))
        with (
            attached.at(torch.arange(5) * 0.3),
            pytest.raises(LengthError, match=r"An input of 13 tokens"),
        ):
            logits(model, padded((5,), 5))
    model, attached = ranged("marian", 9, beyond="error")
    inputs = {**padded((9,), 9), "decoder_input_ids": padded((12,), 12)["input_ids"]}
    with torch.no_grad(), pytest.raises(LengthError, match=r"A target of 12 tokens"):
        logits(model, inputs)
    with torch.no_grad():
        model.generate(**padded((9,), 9), max_new_tokens=15, do_sample=False, eos_token_id=49)
        with pytest.raises(LengthError, match=r"A source of 10 tokens"):
            model.generate(**padded((10,), 10), max_new_tokens=2)
    step(model, inputs)
    with torch.no_grad():
        logits(model, inputs)


def test_a_warning_says_once_that_the_range_was_left() -> None:
    model, _ = ranged("bert", 9)
    message = (
        r"An input of 13 tokens .* \(times up to 0.8, those of 9 tokens\); past it nothing "
        r"was learned. Train on longer inputs, or with TimeJitter\(stretch=…\), which "
        r'beyond="compress" builds on\.'
    )
    with torch.no_grad():
        logits(model, padded((9, 5), 30))
        with pytest.warns(RangeWarning, match=message) as caught:
            logits(model, padded((13, 5), 13))
        assert caught[0].filename == attach_models.__file__, "the line that called the model"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            logits(model, padded((20, 5), 20))
    model, _ = ranged("bert", 9, config=floater.LearnedConfig(max_length=30))
    with torch.no_grad(), pytest.warns(RangeWarning, match=r"Train on longer inputs\.$"):
        logits(model, padded((13, 5), 13))
    model, attached = ranged("bert", 9)
    attached.jitter = floater.TimeJitter(stretch=2.0)
    with torch.no_grad(), pytest.warns(RangeWarning, match=r"with a larger stretch, or choose"):
        logits(model, padded((13, 5), 13))
    model, _ = ranged("marian", 9, beyond="compress")
    inputs = {**padded((20,), 20), "decoder_input_ids": padded((40,), 40)["input_ids"]}
    with torch.no_grad(), pytest.warns(RangeWarning, match=r"A target of 17 tokens"):
        logits(model, inputs)  # compressed like its source, the target is still too long


def test_float32_times_of_training_include_the_same_tokens_later() -> None:
    for length in range(2, 60):
        model = make("bert")
        attached = floater.attach(model, MOVING, positions="replace", beyond="error")
        model.train()
        with attached.at(torch.arange(length) * 0.1):
            logits(model, padded((length,), length))
        model.eval()
        logits(model, padded((length,), length))
        with pytest.raises(LengthError):
            logits(model, padded((length + 1,), length + 1))


def test_an_untrained_attachment_neither_warns_nor_compresses() -> None:
    model = make("bert").double()
    attached = floater.attach(model, MOVING, positions="replace", beyond="compress")
    with torch.no_grad():
        one = logits(model, padded((30,), 30))
        attached.beyond = "extrapolate"
        assert torch.equal(one, logits(model, padded((30,), 30)))


@pytest.mark.parametrize("name", ["bert", "marian"])
def test_a_range_of_one_token_leaves_no_room_to_compress(name: str) -> None:
    """All tokens would stand at one time, and the model would not see their order."""
    model, _ = ranged(name, tokens=1, beyond="compress")
    with pytest.raises(LengthError, match="a range of training of more than one token"):
        logits(model, attach_models.batch(name))
    one = {key: value[:, :1] for key, value in attach_models.batch(name).items()}
    assert logits(model, one).isfinite().all()


def test_a_baked_attachment_serves_the_range_and_refuses_to_compress() -> None:
    model, attached = ranged("bert", 9, beyond="compress")
    with torch.no_grad():
        before = logits(model, padded((9, 5), 9))
        attached.bake(30)
        torch.testing.assert_close(logits(model, padded((9, 5), 9)), before)
        with pytest.raises(AttachmentError, match=r"between those of a baked.* call unbake\(\)"):
            logits(model, padded((12, 5), 12))


@pytest.mark.parametrize(
    "config", [floater.LearnedConfig(), floater.RecurrentConfig(), floater.NoPositionConfig()]
)
def test_encoders_without_times_in_between_cannot_compress(config: Any) -> None:
    model = make("bert")
    with pytest.raises(ArgumentError, match=r"`beyond` can be .* that serve any time"):
        floater.attach(model, config, beyond="compress")
    assert floater.attachment(model) is None
    attached = floater.attach(model, config, beyond="error")
    with pytest.raises(ArgumentError, match="`beyond` must be one of 'extrapolate', 'compress', "):
        attached.beyond = "stretch"  # type: ignore[assignment]
    assert attached.beyond == "error"


@pytest.mark.parametrize("shape", [(0, 5), (2, 0)])
@pytest.mark.parametrize("jitter", [None, floater.TimeJitter(stretch=2.0)])
def test_an_empty_input_is_refused(shape: tuple[int, int], jitter: Any) -> None:
    model = make("bert")
    floater.attach(model, MOVING, positions="replace", jitter=jitter)
    model.train()
    rows, tokens = shape
    with pytest.raises(ArgumentError, match=f"at least one row.* {rows} rows of {tokens} tokens"):
        model(input_ids=torch.zeros(shape, dtype=torch.int64))
