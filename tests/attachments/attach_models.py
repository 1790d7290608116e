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
    CamembertConfig,
    CamembertForMaskedLM,
    DebertaV2Config,
    DebertaV2ForMaskedLM,
    DistilBertConfig,
    DistilBertForMaskedLM,
    ElectraConfig,
    ElectraForMaskedLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MistralConfig,
    MistralForCausalLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    MPNetConfig,
    MPNetForMaskedLM,
    OPTConfig,
    OPTForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    RobertaConfig,
    RobertaForMaskedLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
    Wav2Vec2Config,
    Wav2Vec2ForCTC,
    WhisperConfig,
    WhisperForConditionalGeneration,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
)

import floater

MOVING = floater.FlowConfig(pace="free", zero_init=False, init_scale=1.0, initial_scale=0.7)
"""A flow whose encodings are large from the start."""
SITE_KINDS = ("input", "blocks", "qkv")
VOCABULARY, WIDTH, LIMIT, PAD = 50, 16, 40, 1
SEQ2SEQ = ("marian", "bart", "m2m_100", "t5")
GROUPED = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "smollm3", "phi3")
"""Rotary models with grouped queries: two heads of k and v for four of q."""
CAUSAL = ("gpt2", "opt", "gpt_neox", *GROUPED)
ARCHITECTURES = (
    "bert",
    "roberta",
    "xlm-roberta",
    "camembert",
    "distilbert",
    "electra",
    "albert",
    "mpnet",
    "deberta-v2",
    "modernbert",
    *SEQ2SEQ,
    *CAUSAL,
    "vit",
    "whisper",
    "wav2vec2",
)
TEXT = tuple(name for name in ARCHITECTURES if name not in ("vit", "whisper", "wav2vec2"))

_BERT: dict[str, Any] = {
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
_SEQ2SEQ: dict[str, Any] = {
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
_RELATIVE: dict[str, Any] = {
    "relative_attention": True,
    "pos_att_type": ["c2p", "p2c"],
    "share_att_key": True,
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
}
_ROTARY: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": LIMIT,
    "pad_token_id": PAD,
    "bos_token_id": 0,
    "eos_token_id": 2,
}


def _rotary_models(changes: dict[str, Any]) -> dict[str, Any]:
    settings = {**_ROTARY, **changes}
    windows: dict[str, Any] = {
        "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    }
    return {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**settings)),
        "mistral": lambda: MistralForCausalLM(
            MistralConfig(**{"sliding_window": None, **settings})
        ),
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**settings)),
        "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(head_dim=4, **settings)),
        "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(head_dim=8, **windows, **settings)),
        "gemma3_text": lambda: Gemma3ForCausalLM(
            Gemma3TextConfig(head_dim=8, **windows, **settings)
        ),
        "smollm3": lambda: SmolLM3ForCausalLM(SmolLM3Config(no_rope_layers=[1, 0, 1], **settings)),
        "phi3": lambda: Phi3ForCausalLM(Phi3Config(resid_pdrop=0.0, **settings)),
        "gpt_neox": lambda: GPTNeoXForCausalLM(
            GPTNeoXConfig(
                **{
                    "rotary_pct": 0.5,
                    **{k: v for k, v in settings.items() if k != "num_key_value_heads"},
                }
            )
        ),
        "modernbert": lambda: ModernBertForMaskedLM(
            ModernBertConfig(
                local_attention=6,
                cls_token_id=0,
                sep_token_id=2,
                **{key: value for key, value in settings.items() if key != "num_key_value_heads"},
            )
        ),
        "opt": lambda: OPTForCausalLM(
            OPTConfig(
                vocab_size=VOCABULARY,
                hidden_size=WIDTH,
                word_embed_proj_dim=WIDTH,
                num_hidden_layers=3,
                num_attention_heads=2,
                ffn_dim=32,
                max_position_embeddings=LIMIT,
                dropout=0.0,
                pad_token_id=PAD,
                bos_token_id=0,
                eos_token_id=2,
            )
        ),
    }


def _audio_models() -> dict[str, Any]:
    return {
        "whisper": lambda: WhisperForConditionalGeneration(
            WhisperConfig(
                **{
                    key: value
                    for key, value in _SEQ2SEQ.items()
                    if key not in ("max_position_embeddings", "forced_eos_token_id")
                },
                num_mel_bins=8,
                max_source_positions=17,
                max_target_positions=LIMIT,
                begin_suppress_tokens=None,
                suppress_tokens=None,
            )
        ),
        "wav2vec2": lambda: Wav2Vec2ForCTC(
            Wav2Vec2Config(
                vocab_size=VOCABULARY,
                hidden_size=WIDTH,
                num_hidden_layers=3,
                num_attention_heads=2,
                intermediate_size=32,
                conv_dim=(8, 8),
                conv_stride=(5, 2),
                conv_kernel=(5, 2),
                num_conv_pos_embeddings=4,
                num_conv_pos_embedding_groups=2,
                hidden_dropout=0.0,
                attention_dropout=0.0,
                activation_dropout=0.0,
                feat_proj_dropout=0.0,
                final_dropout=0.0,
                layerdrop=0.0,
                mask_time_prob=0.0,
                pad_token_id=PAD,
            )
        ),
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
        "camembert": lambda: CamembertForMaskedLM(CamembertConfig(**bert)),
        "mpnet": lambda: MPNetForMaskedLM(MPNetConfig(**bert)),
        "deberta-v2": lambda: DebertaV2ForMaskedLM(
            DebertaV2Config(position_biased_input=False, **_RELATIVE, **bert)
        ),
        "t5": lambda: T5ForConditionalGeneration(
            T5Config(
                vocab_size=VOCABULARY,
                d_model=WIDTH,
                d_kv=8,
                d_ff=32,
                num_layers=2,
                num_heads=2,
                dropout_rate=0.0,
                pad_token_id=PAD,
                eos_token_id=2,
                **{"decoder_start_token_id": 2, **changes},
            )
        ),
        **_rotary_models(changes),
        **_audio_models(),
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
    if name == "wav2vec2":
        return {"input_values": torch.randn(rows, 170)}
    if name == "whisper":
        return {
            "input_features": torch.randn(rows, 8, 34),
            "decoder_input_ids": torch.randint(3, VOCABULARY, (rows, 6)),
        }
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
    if pads and name in CAUSAL:
        mask[1, :3] = 0
        ids[1, :3] = PAD
    elif pads:
        mask[1, 5:] = 0
        ids[1, 5:] = PAD
    return {"input_ids": ids, "attention_mask": mask}


@torch.no_grad()
def check_decoding(name: str, model: Any, tokens: int = 9, tolerance: float = 1e-6) -> None:
    """Compare decoding step by step, with a cache, with full forward passes; also with beams and,
    where the model has one, with a static cache. In float64, Gemma 2 itself returns nan for rows
    that are padded in front.
    """
    inputs = generation_inputs(name, pads=name != "gemma2")
    settings = {
        "max_new_tokens": tokens,
        "do_sample": False,
        "output_logits": True,
        "return_dict_in_generate": True,
    }
    cached = model.generate(**inputs, use_cache=True, **settings)
    whole = model.generate(**inputs, use_cache=False, **settings)
    assert torch.equal(cached.sequences, whole.sequences)
    for step, full in zip(cached.logits, whole.logits, strict=True):
        torch.testing.assert_close(step, full, rtol=tolerance, atol=tolerance)
    beams = [
        model.generate(**inputs, use_cache=use, num_beams=4, max_new_tokens=tokens, do_sample=False)
        for use in (True, False)
    ]
    assert torch.equal(beams[0], beams[1])
    if name in ("marian", "gpt2", "llama"):
        static = model.generate(**inputs, cache_implementation="static", **settings)
        assert torch.equal(static.sequences, cached.sequences)
