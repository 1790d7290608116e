"""Tiny models with random weights, one per row of the layout table, and what tests do with
them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    DistilBertConfig,
    DistilBertForMaskedLM,
    ElectraConfig,
    ElectraForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    RobertaConfig,
    RobertaForMaskedLM,
    ViTConfig,
    ViTForImageClassification,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
)

import floater

MOVING = floater.FlowConfig(zero_init=False, init_scale=1.0, initial_scale=0.7)
"""A flow whose encodings are large from the start."""
SITE_KINDS = ("input", "blocks", "qkv")
VOCABULARY, WIDTH, LIMIT, PAD = 50, 16, 40, 1
SEQ2SEQ = ("marian", "bart", "m2m_100")
ARCHITECTURES = (
    "bert",
    "roberta",
    "xlm-roberta",
    "distilbert",
    "electra",
    "albert",
    *SEQ2SEQ,
    "gpt2",
    "vit",
)
TEXT = tuple(name for name in ARCHITECTURES if name != "vit")

_BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": LIMIT,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "pad_token_id": PAD,
}
_SEQ2SEQ = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": LIMIT,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "pad_token_id": PAD,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}


def make(name: str, **changes: Any) -> Any:
    """A tiny model of an architecture, in eval mode, with weights large enough to matter."""
    torch.manual_seed(0)
    bert, seq2seq = {**_BERT, **changes}, {**_SEQ2SEQ, **changes}
    models: dict[str, Any] = {
        "bert": lambda: BertForMaskedLM(BertConfig(**bert)),
        "roberta": lambda: RobertaForMaskedLM(RobertaConfig(**bert)),
        "xlm-roberta": lambda: XLMRobertaForMaskedLM(XLMRobertaConfig(**bert)),
        "electra": lambda: ElectraForMaskedLM(ElectraConfig(embedding_size=8, **bert)),
        "albert": lambda: AlbertForMaskedLM(AlbertConfig(embedding_size=8, **bert)),
        "distilbert": lambda: DistilBertForMaskedLM(
            DistilBertConfig(
                vocab_size=VOCABULARY,
                dim=WIDTH,
                n_layers=3,
                n_heads=2,
                hidden_dim=32,
                max_position_embeddings=LIMIT,
                dropout=0.0,
                attention_dropout=0.0,
                pad_token_id=PAD,
            )
        ),
        "marian": lambda: MarianMTModel(MarianConfig(**seq2seq)),
        "bart": lambda: BartForConditionalGeneration(BartConfig(**seq2seq)),
        "m2m_100": lambda: M2M100ForConditionalGeneration(M2M100Config(**seq2seq)),
        "gpt2": lambda: GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCABULARY,
                n_embd=WIDTH,
                n_layer=3,
                n_head=2,
                n_positions=LIMIT,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                bos_token_id=0,
                eos_token_id=2,
                pad_token_id=PAD,
            )
        ),
        "vit": lambda: ViTForImageClassification(
            ViTConfig(
                hidden_size=WIDTH,
                num_hidden_layers=3,
                num_attention_heads=2,
                intermediate_size=32,
                image_size=32,
                patch_size=8,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
        ),
    }
    model = models[name]().eval()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.weight.mul_(4.0)
    return model


def batch(name: str, rows: int = 3, length: int = 11) -> dict[str, Tensor]:
    """Inputs; the second row of a text is padded on the right."""
    if name == "vit":
        return {"pixel_values": torch.randn(rows, 3, 32, 32)}
    ids = torch.randint(3, VOCABULARY, (rows, length))
    mask = torch.ones_like(ids)
    if rows > 1:
        mask[1, length - 4 :] = 0
        ids[1, length - 4 :] = PAD
    inputs = {"input_ids": ids, "attention_mask": mask}
    if name in SEQ2SEQ:
        inputs["decoder_input_ids"] = torch.randint(3, VOCABULARY, (rows, 6))
    return inputs


def logits(model: Any, inputs: dict[str, Any], **more: Any) -> Tensor:
    """The first output of a model: logits, or hidden states of a model without a head."""
    out: Tensor = model(**inputs, **more)[0]
    return out


def generation_inputs(name: str, pads: bool = True) -> dict[str, Tensor]:
    torch.manual_seed(1)
    ids = torch.randint(3, VOCABULARY, (3, 8))
    mask = torch.ones_like(ids)
    if pads and name == "gpt2":
        mask[1, :3] = 0
        ids[1, :3] = PAD
    elif pads:
        mask[1, 5:] = 0
        ids[1, 5:] = PAD
    return {"input_ids": ids, "attention_mask": mask}
