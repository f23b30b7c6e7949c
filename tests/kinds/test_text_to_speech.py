"""Text to speech: a tiny VITS with random weights, against the library's own pipeline."""

from __future__ import annotations

import json
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import penstock
from tests.kinds.served import serving

pytestmark = pytest.mark.library


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vits")
    letters = {letter: number for number, letter in enumerate("_abcdefghijklmnopqrstuvwxyz '")}
    (folder / "letters.json").write_text(json.dumps(letters))
    tokenizer = transformers.VitsTokenizer(str(folder / "letters.json"), pad_token="_", phonemize=False)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(1)
    config = transformers.VitsConfig(
        vocab_size=len(letters), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, ffn_dim=16, flow_size=16,
        spectrogram_bins=9, duration_predictor_filter_channels=16, prior_encoder_num_flows=1,
        posterior_encoder_num_wavenet_layers=1, prior_encoder_num_wavenet_layers=1, upsample_initial_channel=16,
        upsample_rates=[4, 2], upsample_kernel_sizes=[8, 4], resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1]],
        depth_separable_num_layers=1, duration_predictor_num_flows=1, sampling_rate=8000,
    )  # fmt: skip
    transformers.VitsModel(config).eval().save_pretrained(folder)
    return folder


def sound(path: Path) -> np.ndarray:
    with wave.open(str(path)) as file:
        assert file.getframerate() == 8000
        return np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float64) / 32767


def spoken(engine: penstock.Engine, out: Path, seed: int) -> np.ndarray:
    engine.run("mine", text="the river board", seed=seed, out=out)
    [path] = out.glob("*.wav")
    return sound(path)


def test_speech_is_that_of_the_library_s_pipeline_and_the_same_for_a_seed(source: Path, tmp_path: Path) -> None:
    pipe = transformers.pipeline("text-to-audio", model=str(source), device="cpu")
    torch.manual_seed(7)
    expected = pipe("the river board")["audio"].reshape(-1)
    with serving(tmp_path, "text-to-speech", source) as engine:
        found = [spoken(engine, tmp_path / str(turn), seed) for turn, seed in enumerate((7, 7, 8))]
    assert len(expected) > 50
    assert np.abs(found[0] - expected.clip(-1, 1)).max() < 2 / 32767
    assert (found[0] == found[1]).all()
    assert found[2].shape != found[0].shape or (found[2] != found[0]).any()
