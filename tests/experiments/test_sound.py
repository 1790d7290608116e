"""`floater extend` for Whisper, whose inputs are sound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoFeatureExtractor,
    AutoProcessor,
    AutoTokenizer,
    Wav2Vec2FeatureExtractor,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForAudioClassification,
    WhisperForCausalLM,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizer,
)

import floater
from command_line import mistake, said
from floater.encoders.tables import TABLE_SCALINGS

OLD = 50
"""Positions of a second of sound."""
CONFIG: dict[str, Any] = {
    "vocab_size": 60,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "num_mel_bins": 8,
    "max_source_positions": OLD,
    "max_target_positions": 12,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "decoder_start_token_id": 2,
    "begin_suppress_tokens": None,
    "suppress_tokens": None,
}


def write_model(folder: Path, kind: Any = WhisperForConditionalGeneration) -> Path:
    torch.manual_seed(0)
    kind(WhisperConfig(**CONFIG)).save_pretrained(folder)
    return folder


def extractor() -> WhisperFeatureExtractor:
    return WhisperFeatureExtractor(feature_size=8, chunk_length=1)


def tokenizer() -> WhisperTokenizer:
    words = ("<|endoftext|>", "<pad>", "<|startoftranscript|>", *"abcdefgh")
    names = {name: number for number, name in enumerate(words)}
    return WhisperTokenizer(vocab=names, merges=[], model_max_length=12)


def output(model: Any, features: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(features, decoder_input_ids=torch.tensor([[2, 3]]))[0]
    return found


@pytest.mark.parametrize("scaling", TABLE_SCALINGS)
def test_the_folder_is_a_plain_one(
    scaling: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, out = write_model(tmp_path / "whisper"), tmp_path / "long"
    command = ["extend", source, "--length", 75, "--out", out, "--scaling", scaling]
    told = said(monkeypatch, capsys, *command)
    assert f"wrote {out}: inputs of 75 positions, 50 before" in told
    assert (out / "table.png").stat().st_size > 10_000
    assert not (out / "floater_config.json").exists()
    assert not (out / "preprocessor_config.json").exists()
    assert not (out / "tokenizer_config.json").exists()
    plain = WhisperForConditionalGeneration.from_pretrained(out)
    assert plain.config.max_source_positions == 75
    assert plain.config.max_target_positions == 12
    expected = WhisperForConditionalGeneration.from_pretrained(source)
    floater.extend(expected, 75, scaling=scaling, learned=False)  # type: ignore[arg-type]
    features = torch.randn(1, 8, 150)
    # two fits of waves differ in their last bits
    torch.testing.assert_close(
        output(plain, features), output(expected, features), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("whole", [False, True])
def test_the_feature_extractor_follows(
    whole: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its settings are in a file of their own, or in that of a processor."""
    source, out = write_model(tmp_path / "whisper"), tmp_path / "long"
    if whole:
        WhisperProcessor(extractor(), tokenizer()).save_pretrained(source)
    else:
        extractor().save_pretrained(source)
        tokenizer().save_pretrained(source)
    assert (source / "processor_config.json").exists() == whole
    said(monkeypatch, capsys, "extend", source, "--length", 3 * OLD, "--out", out)
    settings = json.loads((out / "preprocessor_config.json").read_text())
    found = [settings[name] for name in ("chunk_length", "n_samples", "nb_max_frames")]
    assert found == [3, 48_000, 300]
    loaded = AutoFeatureExtractor.from_pretrained(out)
    assert loaded.to_dict() == settings
    words = AutoTokenizer.from_pretrained(out)
    assert words.get_vocab() == tokenizer().get_vocab()
    assert words.model_max_length == 12  # that of the decoder stays
    wave = np.random.default_rng(0).normal(size=40_000).astype("float32")
    processor = AutoProcessor.from_pretrained(out)
    features = processor(wave, sampling_rate=16_000, return_tensors="pt").input_features
    assert features.shape == (1, 8, 300)
    model = WhisperForConditionalGeneration.from_pretrained(out)
    assert output(model, features).isfinite().all()


def test_a_classifier_keeps_its_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_model(tmp_path / "whisper", WhisperForAudioClassification)
    said(monkeypatch, capsys, "extend", source, "--length", 80, "--out", tmp_path / "long")
    before, after = (
        WhisperForAudioClassification.from_pretrained(folder).eval()
        for folder in (source, tmp_path / "long")
    )
    assert torch.equal(after.classifier.weight, before.classifier.weight)
    with torch.no_grad():
        assert after(torch.randn(1, 8, 160)).logits.isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--length", OLD], f"`--length` must be larger than the {OLD} positions of"),
        (
            ["--length", 120],
            "must be a whole number of seconds, a multiple of 50 positions, for the feature",
        ),
        (["--length", 120], "but is 120; choose 150"),
        (
            ["--length", 100, "--text", "a.txt", "--valid", "b.txt"],
            "`--text` must be left out for",
        ),
        (["--length", 100, "--updates", 3], "are for training, but no `--text`"),
        (["--length", 100, "--scaling", "yarn"], "must be one of waves, linear, group"),
    ],
)
def test_mistakes_end_in_one_line(
    options: list[object],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, out = write_model(tmp_path / "whisper"), tmp_path / "long"
    extractor().save_pretrained(source)
    assert message in mistake(monkeypatch, capsys, "extend", source, "--out", out, *options)
    assert not out.exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("{", "The feature extractor of"),
        (json.dumps(Wav2Vec2FeatureExtractor().to_dict()), "must be a WhisperFeatureExtractor"),
    ],
)
def test_other_feature_extractors_are_refused(
    settings: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, out = write_model(tmp_path / "whisper"), tmp_path / "long"
    (source / "preprocessor_config.json").write_text(settings)
    command = ["extend", source, "--length", 100, "--out", out]
    assert message in mistake(monkeypatch, capsys, *command)
    assert not out.exists()


def test_a_decoder_alone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_model(tmp_path / "whisper", WhisperForCausalLM)
    command = ["extend", source, "--length", 100, "--out", tmp_path / "long"]
    assert "is a part of one; pass the whole model" in mistake(monkeypatch, capsys, *command)
    assert not (tmp_path / "long").exists()
