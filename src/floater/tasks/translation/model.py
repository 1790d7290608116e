"""The original Transformer on transformers' Marian architecture, with the encoder that a config
asks for.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, MarianConfig
from transformers import MarianMTModel as StockModel
from transformers.modeling_outputs import Seq2SeqLMOutput

from ...attachments import Attachment, attach, attachment
from ...attachments.context import NAME
from ...encoders import NoPositionConfig
from ...errors import RunError
from ...training.average import weights_of
from ...training.losses import linear_cross_entropy
from .config import TransformerConfig, TranslationPositions
from .vocabulary import Vocabulary


class MarianMTModel(StockModel):
    """transformers' own, but for the loss in training: smoothed, right under accumulation, and
    formed without all logits.

    It has its base's name, so that what it saves loads anywhere.
    """

    label_smoothing = 0.0

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        inputs = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "decoder_input_ids": decoder_input_ids,
            **kwargs,
        }
        if labels is None or num_items_in_batch is None:
            out: Seq2SeqLMOutput = super().forward(labels=labels, **inputs)
            return out
        hidden = self.model(**{**inputs, "use_cache": False})[0]
        total = linear_cross_entropy(hidden, self.lm_head.weight, labels, self.label_smoothing)
        return Seq2SeqLMOutput(loss=total / num_items_in_batch)  # type: ignore[arg-type]


def build(config: TransformerConfig, vocabulary: Vocabulary) -> MarianMTModel:
    """A fresh Transformer: ReLU, shared and scaled embeddings, Xavier weights, own special
    tokens.
    """
    size = config.size()
    model = MarianMTModel(
        MarianConfig(
            vocab_size=len(vocabulary),
            d_model=size["dim"],
            encoder_layers=size["layers"],
            decoder_layers=size["layers"],
            encoder_attention_heads=size["heads"],
            decoder_attention_heads=size["heads"],
            encoder_ffn_dim=size["feed_forward"],
            decoder_ffn_dim=size["feed_forward"],
            dropout=size["dropout"],
            attention_dropout=config.attention_dropout,
            activation_dropout=config.activation_dropout,
            activation_function="relu",
            scale_embedding=True,
            share_encoder_decoder_embeddings=True,
            tie_word_embeddings=True,
            max_position_embeddings=1024,
            pad_token_id=vocabulary.pad,
            bos_token_id=vocabulary.start,
            eos_token_id=vocabulary.end,
            decoder_start_token_id=vocabulary.start,
            forced_eos_token_id=None,
        )
    )
    initialise(model, vocabulary.pad)
    model.generation_config = GenerationConfig(
        pad_token_id=vocabulary.pad,
        bos_token_id=vocabulary.start,
        eos_token_id=vocabulary.end,
        decoder_start_token_id=vocabulary.start,
        bad_words_ids=[[vocabulary.pad], [vocabulary.start]],
    )
    return model


@torch.no_grad()
def initialise(model: MarianMTModel, pad: int) -> None:
    """Xavier-uniform matrices, zero biases, embeddings with deviation d^-½ (they are scaled by d^½
    on the way in).
    """
    for module in model.modules():
        if isinstance(module, nn.Linear) and module is not model.lm_head:
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    shared: nn.Embedding = model.get_input_embeddings()  # type: ignore[assignment]
    nn.init.normal_(shared.weight, std=1 / math.sqrt(shared.embedding_dim))
    shared.weight[pad].zero_()


def attach_encoder(model: MarianMTModel, config: TranslationPositions) -> Attachment:
    """Attach the encoder of a config.

    Without one, the model keeps its built-in sinusoid, which is extended to any length.
    """
    attached = config.attach(model, per_stack=config.per_stack)
    if attached is None:
        return attach(
            model, NoPositionConfig(), sites="input", positions="keep", beyond=config.beyond
        )
    return attached


def warm_start(model: MarianMTModel, folder: Path) -> None:
    """Copy the weights of a trained model into the base, whatever encoder either of them has."""
    advice = "train that run again, or `floater average` it, if it still has its checkpoints."
    given = {
        name: tensor
        for name, tensor in weights_of(folder, advice).items()
        if not name.startswith(f"{NAME}.")
    }
    wanted = {
        name: tensor
        for name, tensor in model.state_dict().items()
        if not name.startswith(f"{NAME}.")
    }
    for name, tensor in given.items():
        if name not in wanted or wanted[name].shape != tensor.shape:
            here = tuple(wanted[name].shape) if name in wanted else "nothing"
            raise RunError(
                f"The weights in {folder} do not fit the model of this config: {name} is "
                f"{tuple(tensor.shape)} there and {here} here; use the same `model` and "
                "`vocabulary`."
            )
    found = model.load_state_dict(given, strict=False)
    tied = {
        "lm_head.weight",
        "model.encoder.embed_tokens.weight",
        "model.decoder.embed_tokens.weight",
    }
    missing = [
        name
        for name in found.missing_keys
        if name not in tied and not name.startswith(f"{NAME}.") and "embed_positions" not in name
    ]
    if missing:
        raise RunError(f"The weights in {folder} are not complete: {missing[0]} is missing.")
    model.tie_weights()


@torch.no_grad()
def reinitialise_encoder(model: MarianMTModel, scale: float) -> None:
    """Draw the encoder's weights small and not zero, as the paper starts its flow models."""
    attached = attachment(model)
    assert attached is not None
    for parameter in attached.parameters():
        nn.init.normal_(parameter, std=scale)


def position_parameters(model: MarianMTModel) -> int:
    """Parameters of the encoder."""
    attached = attachment(model)
    return 0 if attached is None else sum(parameter.numel() for parameter in attached.parameters())
