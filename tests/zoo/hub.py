"""Public architectures as ``transformers`` builds them, in tiny sizes: nothing is downloaded."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Entry:
    """A model of the zoo: how it is built, and the arguments of one forward pass."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[torch.Tensor, ...]]
    options: dict[str, Any] = field(default_factory=dict)  # of sparsify


class FirstOutput(nn.Module):
    """A model of transformers as a function of tensors to one tensor: its first output."""

    def __init__(self, model: nn.Module, arguments: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.arguments = model, arguments

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        given = dict(zip(self.arguments, tensors, strict=True))
        return self.model(**given, return_dict=False, **self._options())[0]

    def _options(self) -> dict[str, Any]:
        return {"use_cache": False} if getattr(self.model.config, "use_cache", False) else {}


WORDS, LENGTH = 40, 6


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def text() -> tuple[torch.Tensor, ...]:
    return (torch.randint(3, WORDS, (2, LENGTH), generator=_generator()),)


def two_texts() -> tuple[torch.Tensor, ...]:
    return text() + text()


def image(size: int = 32) -> tuple[torch.Tensor, ...]:
    return (torch.randn(2, 3, size, size, generator=_generator(), dtype=torch.float64),)


def sound() -> tuple[torch.Tensor, ...]:
    return (torch.randn(2, 400, generator=_generator(), dtype=torch.float64),)


def spectrogram() -> tuple[torch.Tensor, ...]:
    return (torch.randn(2, 16, 24, generator=_generator(), dtype=torch.float64),)


PARTS = {"vocab_size": WORDS, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
HEADS = {
    "num_attention_heads": 2,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BASE: dict[str, Any] = PARTS | HEADS | {"attn_implementation": "eager"}
GROUPED = BASE | {"num_key_value_heads": 1, "head_dim": 8}
EXPERTS = GROUPED | {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
EXPERTS |= {"experts_implementation": "eager"}  # the default multiplies in float32 and shorter only
VISION = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
VISION |= {"image_size": 32, "patch_size": 8, "attn_implementation": "eager"}
SEQ2SEQ = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "vocab_size": WORDS}
SEQ2SEQ |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 16}
SEQ2SEQ |= {
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "attn_implementation": "eager",
}
T5 = {
    "d_model": 16,
    "d_ff": 24,
    "d_kv": 8,
    "num_layers": 1,
    "num_decoder_layers": 1,
    "num_heads": 2,
    "vocab_size": WORDS,
}
T5 |= {
    "dropout_rate": 0.0,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 0,
    "attn_implementation": "eager",
}
GPT = {
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 16,
    "vocab_size": WORDS,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT |= {"attn_implementation": "eager"}
CONV_SIZES = {
    "embed_dim": 8,
    "depths": [1, 1],
    "num_heads": [1, 2],
    "window_size": 2,
    "image_size": 16,
    "patch_size": 4,
}
WAVES = BASE | {"conv_dim": [8, 8], "conv_kernel": [10, 3], "conv_stride": [5, 2], "num_feat_extract_layers": 2}
WAVES |= {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0, "layerdrop": 0.0}
WAVES |= dict.fromkeys(("hidden_dropout", "activation_dropout", "attention_dropout", "feat_proj_dropout"), 0.0)

# Model class, configuration class, its sizes, the arguments of forward, the inputs.
TABLE: list[tuple[str, str, dict[str, Any], tuple[str, ...], Callable[[], tuple[torch.Tensor, ...]]]] = [
    ("BertModel", "BertConfig", BASE, ("input_ids",), text),
    ("BertForMaskedLM", "BertConfig", BASE, ("input_ids",), text),
    ("RobertaModel", "RobertaConfig", BASE | {"max_position_embeddings": 20}, ("input_ids",), text),
    ("DistilBertModel", "DistilBertConfig", {"dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 2, "vocab_size": WORDS, "max_position_embeddings": 16, "attn_implementation": "eager"}, ("input_ids",), text),
    ("AlbertModel", "AlbertConfig", BASE | {"embedding_size": 8}, ("input_ids",), text),
    ("ElectraModel", "ElectraConfig", BASE | {"embedding_size": 8}, ("input_ids",), text),
    ("MobileBertModel", "MobileBertConfig", BASE | {"embedding_size": 8, "true_hidden_size": 16, "intra_bottleneck_size": 16, "intermediate_size": 24}, ("input_ids",), text),
    ("MobileBertForMaskedLM", "MobileBertConfig", BASE | {"embedding_size": 8, "true_hidden_size": 16, "intra_bottleneck_size": 16, "intermediate_size": 24}, ("input_ids",), text),
    ("SqueezeBertModel", "SqueezeBertConfig", BASE | {"embedding_size": 16, "q_groups": 2, "k_groups": 2, "v_groups": 2, "post_attention_groups": 1, "intermediate_groups": 2, "output_groups": 2}, ("input_ids",), text),
    ("ConvBertModel", "ConvBertConfig", BASE | {"embedding_size": 8, "head_ratio": 1, "num_groups": 2, "conv_kernel_size": 3}, ("input_ids",), text),
    ("DebertaV2Model", "DebertaV2Config", BASE | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, ("input_ids",), text),
    ("MPNetModel", "MPNetConfig", BASE | {"max_position_embeddings": 20}, ("input_ids",), text),
    ("FNetModel", "FNetConfig", BASE | {"tpu_short_seq_length": LENGTH}, ("input_ids",), text),
    ("FunnelModel", "FunnelConfig", {"d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 24, "block_sizes": [1, 1], "num_decoder_layers": 1, "vocab_size": WORDS, "activation_dropout": 0.0, "hidden_dropout": 0.0, "attention_dropout": 0.0}, ("input_ids",), text),
    ("XLNetModel", "XLNetConfig", {"d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24, "vocab_size": WORDS, "pad_token_id": 0}, ("input_ids",), text),
    ("ModernBertModel", "ModernBertConfig", BASE | {"cls_token_id": 1, "sep_token_id": 2, "local_attention": 4}, ("input_ids",), text),
    ("GPT2LMHeadModel", "GPT2Config", GPT, ("input_ids",), text),
    ("OpenAIGPTLMHeadModel", "OpenAIGPTConfig", {k: v for k, v in GPT.items() if k != "attn_implementation"}, ("input_ids",), text),
    ("GPTNeoModel", "GPTNeoConfig", {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 16, "window_size": 4, "vocab_size": WORDS, "intermediate_size": 24, "bos_token_id": 1, "eos_token_id": 2, "attn_implementation": "eager"}, ("input_ids",), text),
    ("GPTJModel", "GPTJConfig", GPT | {"rotary_dim": 4}, ("input_ids",), text),
    ("GPTNeoXModel", "GPTNeoXConfig", BASE, ("input_ids",), text),
    ("OPTModel", "OPTConfig", BASE | {"ffn_dim": 24, "word_embed_proj_dim": 16}, ("input_ids",), text),
    ("BloomModel", "BloomConfig", {"hidden_size": 16, "n_layer": 2, "n_head": 2, "vocab_size": WORDS, "bos_token_id": 1, "eos_token_id": 2}, ("input_ids",), text),
    ("LlamaForCausalLM", "LlamaConfig", GROUPED, ("input_ids",), text),
    ("MistralModel", "MistralConfig", GROUPED, ("input_ids",), text),
    ("Qwen2Model", "Qwen2Config", GROUPED, ("input_ids",), text),
    ("Qwen3ForCausalLM", "Qwen3Config", GROUPED | {"tie_word_embeddings": True}, ("input_ids",), text),
    ("Gemma2Model", "Gemma2Config", GROUPED | {"query_pre_attn_scalar": 8}, ("input_ids",), text),
    ("PhiModel", "PhiConfig", BASE, ("input_ids",), text),
    ("Phi3Model", "Phi3Config", GROUPED, ("input_ids",), text),
    ("FalconModel", "FalconConfig", BASE, ("input_ids",), text),
    ("StableLmModel", "StableLmConfig", GROUPED, ("input_ids",), text),
    ("OlmoModel", "OlmoConfig", GROUPED, ("input_ids",), text),
    ("MixtralForCausalLM", "MixtralConfig", EXPERTS, ("input_ids",), text),
    ("GptOssModel", "GptOssConfig", EXPERTS | {"sliding_window": 4}, ("input_ids",), text),
    ("Qwen2MoeModel", "Qwen2MoeConfig", EXPERTS | {"shared_expert_intermediate_size": 12}, ("input_ids",), text),
    ("Qwen3MoeModel", "Qwen3MoeConfig", EXPERTS, ("input_ids",), text),
    ("OlmoeModel", "OlmoeConfig", EXPERTS, ("input_ids",), text),
    ("GraniteMoeModel", "GraniteMoeConfig", EXPERTS, ("input_ids",), text),
    ("JetMoeModel", "JetMoeConfig", EXPERTS | {"kv_channels": 8, "num_key_value_heads": 2}, ("input_ids",), text),
    ("DbrxModel", "DbrxConfig", {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_seq_len": 16, "vocab_size": WORDS, "ffn_config": {"ffn_hidden_size": 12, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 16}, "attn_config": {"kv_n_heads": 1, "clip_qkv": 8.0, "rope_theta": 10000.0}, "attn_implementation": "eager"}, ("input_ids",), text),
    ("MambaModel", "MambaConfig", {"hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, "vocab_size": WORDS, "time_step_rank": 4}, ("input_ids",), text),
    ("RwkvModel", "RwkvConfig", {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": WORDS, "context_length": 16}, ("input_ids",), text),
    ("RecurrentGemmaModel", "RecurrentGemmaConfig", GROUPED | {"lru_width": 16, "num_hidden_layers": 3, "attention_window_size": 4}, ("input_ids",), text),
    ("T5Model", "T5Config", T5, ("input_ids", "decoder_input_ids"), two_texts),
    ("T5EncoderModel", "T5Config", T5, ("input_ids",), text),
    ("SwitchTransformersModel", "SwitchTransformersConfig", T5 | {"num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}, ("input_ids", "decoder_input_ids"), two_texts),
    ("BartModel", "BartConfig", SEQ2SEQ, ("input_ids", "decoder_input_ids"), two_texts),
    ("PegasusModel", "PegasusConfig", SEQ2SEQ, ("input_ids", "decoder_input_ids"), two_texts),
    ("MarianModel", "MarianConfig", SEQ2SEQ, ("input_ids", "decoder_input_ids"), two_texts),
    ("WhisperModel", "WhisperConfig", SEQ2SEQ | {"num_mel_bins": 16, "max_source_positions": 12, "max_target_positions": 16, "suppress_tokens": None, "begin_suppress_tokens": None}, ("input_features", "decoder_input_ids"), lambda: spectrogram() + text()),
    ("ViTModel", "ViTConfig", VISION, ("pixel_values",), image),
    ("DeiTModel", "DeiTConfig", VISION, ("pixel_values",), image),
    ("BeitModel", "BeitConfig", VISION | {"use_relative_position_bias": True, "layer_scale_init_value": 0.1, "drop_path_rate": 0.0}, ("pixel_values",), image),
    ("Dinov2Model", "Dinov2Config", VISION | {"mlp_ratio": 2}, ("pixel_values",), image),
    ("CLIPVisionModel", "CLIPVisionConfig", VISION, ("pixel_values",), image),
    ("CLIPTextModel", "CLIPTextConfig", BASE, ("input_ids",), text),
    ("SiglipVisionModel", "SiglipVisionConfig", VISION, ("pixel_values",), image),
    ("SwinModel", "SwinConfig", CONV_SIZES | {"drop_path_rate": 0.0}, ("pixel_values",), lambda: image(16)),
    ("Swinv2Model", "Swinv2Config", CONV_SIZES | {"drop_path_rate": 0.0}, ("pixel_values",), lambda: image(16)),
    ("ConvNextModel", "ConvNextConfig", {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}, ("pixel_values",), image),
    ("ConvNextV2Model", "ConvNextV2Config", {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}, ("pixel_values",), image),
    ("ResNetModel", "ResNetConfig", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}, ("pixel_values",), image),
    ("RegNetModel", "RegNetConfig", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 4}, ("pixel_values",), image),
    ("MobileNetV2Model", "MobileNetV2Config", {"depth_multiplier": 0.25, "image_size": 32, "depth_divisible_by": 4, "min_depth": 4}, ("pixel_values",), image),
    ("EfficientNetModel", "EfficientNetConfig", {"image_size": 32, "width_coefficient": 1.0, "depth_coefficient": 1.0, "kernel_sizes": [3, 5], "in_channels": [32, 8], "out_channels": [8, 16], "depthwise_padding": [], "strides": [1, 2], "num_block_repeats": [1, 1], "expand_ratios": [1, 4], "hidden_dim": 1280, "depth_divisor": 4, "dropout_rate": 0.0, "drop_connect_rate": 0.0}, ("pixel_values",), image),
    ("SegformerModel", "SegformerConfig", {"hidden_sizes": [8, 16], "depths": [1, 1], "num_encoder_blocks": 2, "num_attention_heads": [1, 2], "sr_ratios": [2, 1], "patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2], "drop_path_rate": 0.0}, ("pixel_values",), image),
    ("PoolFormerModel", "PoolFormerConfig", {"hidden_sizes": [8, 16], "depths": [1, 1], "num_encoder_blocks": 2, "patch_sizes": [7, 3], "strides": [4, 2], "padding": [2, 1], "mlp_ratio": 2.0, "drop_path_rate": 0.0}, ("pixel_values",), image),
    ("LevitModel", "LevitConfig", {"image_size": 64, "hidden_sizes": [16, 24, 32], "num_attention_heads": [1, 2, 2], "depths": [1, 1, 1], "key_dim": [8, 8, 8], "drop_path_rate": 0}, ("pixel_values",), lambda: image(64)),
    ("Wav2Vec2Model", "Wav2Vec2Config", WAVES, ("input_values",), sound),
    ("HubertModel", "HubertConfig", WAVES, ("input_values",), sound),
    ("ASTModel", "ASTConfig", VISION | {"patch_size": 4, "frequency_stride": 4, "time_stride": 4, "max_length": 16, "num_mel_bins": 24}, ("input_values",), spectrogram),
    ("PatchTSTModel", "PatchTSTConfig", {"d_model": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 24, "num_input_channels": 24, "context_length": 16, "patch_length": 4, "patch_stride": 4}, ("past_values",), spectrogram),
]  # fmt: skip


def entries() -> list[Entry]:
    """Every row of the table as a model of the zoo."""
    return [Entry(row[0], _builder(*row[:4]), row[4]) for row in TABLE]


def _builder(model: str, config: str, sizes: dict[str, Any], arguments: tuple[str, ...]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        torch.manual_seed(0)
        dropouts = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "dropout": 0.0}
        made = getattr(transformers, config)(**(sizes | {k: v for k, v in dropouts.items() if k not in sizes}))
        return FirstOutput(getattr(transformers, model)(made), arguments).double()

    return build
