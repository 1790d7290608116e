"""The longest input of a model, and settings of the default encoder."""

from __future__ import annotations

import pytest
from transformers import (
    CamembertConfig,
    DebertaV2Config,
    LlamaConfig,
    MPNetConfig,
    OPTConfig,
    PreTrainedConfig,
    RobertaConfig,
    T5Config,
)

from floater.attachments.layouts import position_limit
from floater.encoders import FlowConfig
from floater.tasks.understanding.config import UnderstandingPositions


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        (RobertaConfig(max_position_embeddings=34, pad_token_id=1), 32),
        (CamembertConfig(max_position_embeddings=34, pad_token_id=3), 30),
        (MPNetConfig(max_position_embeddings=34, pad_token_id=0), 32),
        (OPTConfig(max_position_embeddings=34), 34),
        (LlamaConfig(max_position_embeddings=34), None),
        (T5Config(), None),
        (DebertaV2Config(max_position_embeddings=34, position_biased_input=True), 34),
        (DebertaV2Config(max_position_embeddings=34, position_biased_input=False), None),
    ],
    ids=lambda value: value.model_type if isinstance(value, PreTrainedConfig) else str(value),
)
def test_tables_limit_inputs_and_nothing_else_does(
    config: PreTrainedConfig, limit: int | None
) -> None:
    assert position_limit(config) == limit


def test_settings_of_the_default_encoder_need_no_kind() -> None:
    positions = UnderstandingPositions.model_validate({"encoder": {"pace": "free"}})
    assert positions.encoder == FlowConfig(pace="free")
