"""Runners by the processors that they can serve, written out by hand; `test_pairs.py` compares it with declarations."""

from __future__ import annotations

from collections.abc import Mapping

#: The runners that can serve each processor, with suitable models.
TABLE: Mapping[str, frozenset[str]] = {
    name: frozenset(runners.split())
    for name, runners in {
        "audio-classification": "onnx torch transformers",
        "depth-estimation": "onnx torch transformers",
        "function": "function",
        "image-classification": "fake onnx torch transformers",
        "image-embedding": "onnx torch transformers",
        "image-generation": "diffusers",
        "image-segmentation": "onnx torch transformers",
        "image-text-to-text": "transformers",
        "instance-segmentation": "transformers",
        "layout-detection": "onnx torch",
        "mask-generation": "transformers",
        "object-detection": "onnx torch transformers",
        "openai-chat": "openai-server vllm",
        "openai-completion": "openai-server vllm",
        "openai-embedding": "openai-server vllm",
        "optical-character-recognition": "rapidocr",
        "raster-detection": "onnx torch transformers",
        "raster-embedding": "olmoearth onnx terratorch torch transformers",
        "raster-mask-generation": "transformers",
        "raster-regression": "onnx terratorch torch",
        "raster-segmentation": "fake lightgbm onnx terratorch torch transformers",
        "raster-zero-shot-detection": "transformers",
        "speech-recognition": "transformers",
        "tabular": "fake lightgbm onnx torch",
        "tensor": "fake lightgbm olmoearth onnx terratorch torch transformers vllm",
        "text-classification": "onnx torch transformers",
        "text-embedding": "onnx torch transformers vllm",
        "text-generation": "transformers",
        "text-image-embedding": "transformers",
        "text-ranking": "onnx torch transformers",
        "video-classification": "fake onnx torch transformers",
        "video-segmentation": "onnx torch transformers",
        "vllm-plugin": "vllm",
        "zero-shot-classification": "transformers",
        "zero-shot-object-detection": "transformers",
    }.items()
}
