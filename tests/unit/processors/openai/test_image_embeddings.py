"""Embeddings of images in chats of vLLM: for tenants with raw tensors, and checked before vLLM gets them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from safetensors.numpy import save_file

from penstock.errors import InvalidInput
from penstock.models import Model, media_references, tensor_places
from penstock.processors.base import Prompt
from penstock.processors.openai.text import OpenAIChat
from penstock.processors.testing import LocalFiles

WIDTH = 8
CONFIG = {
    "model_type": "qwen2_vl", "hidden_size": WIDTH, "image_token_id": 5, "video_token_id": 6,
    "vision_config": {"spatial_merge_size": 2},
}  # fmt: skip
REQUEST = {
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look"},
                {"type": "image_embeds", "image_embeds": {"data": "media://e"}},
            ],
        }
    ]
}


def a_processor(folder: Path, config: Mapping[str, Any] = CONFIG, **more: Any) -> OpenAIChat:
    (folder / "config.json").write_text(json.dumps(config))
    return OpenAIChat(
        Model(
            **{
                "name": "qwen", "title": "Qwen", "runner": "vllm", "processor": "openai-chat", "source": str(folder),
                "revision": "1", "options": {"engine": {"enable_mm_embeds": True}}, **more,
            }
        )
    )  # fmt: skip


def prepared(folder: Path, arrays: Mapping[str, Any]) -> Prompt:
    save_file(dict(arrays), path := folder / "a.safetensors")
    processor = a_processor(folder)
    request = processor.request.model_validate(REQUEST)
    [prompt] = processor.pre_process(request, LocalFiles({"media://e": path})).prompts
    return prompt


def embeddings(rows: int = 6, width: int = WIDTH, dtype: str = "float32") -> Any:
    return np.arange(rows * width).reshape(rows, width).astype(dtype)


def grid(*sizes: int) -> Any:
    return np.array([sizes], np.int64)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_embeddings_go_on_in_vllms_form(tmp_path: Path, dtype: str) -> None:
    prompt = prepared(tmp_path, {"image_embeds": embeddings(dtype=dtype), "image_grid_thw": grid(1, 4, 6)})
    [message] = prompt.data["body"]["messages"]
    assert message["content"][1] == {
        "type": "image_embeds", "image_embeds": {"image_embeds": "", "image_grid_thw": [1, 4, 6]},
    }  # fmt: skip
    assert prompt.data["media"] == [[["messages", 0, "content", 1, "image_embeds", "image_embeds"], ""]]
    sent = np.load(BytesIO(prompt.data["medium_0"].tobytes()))
    assert sent.dtype == np.float32
    assert np.array_equal(sent, embeddings())


def test_only_tenants_with_raw_tensors_may_send_them(tmp_path: Path) -> None:
    schema = a_processor(tmp_path).request.model_json_schema()
    place = "/messages/0/content/1/image_embeds/data"
    assert list(tensor_places(schema, REQUEST)) == [place]
    assert list(media_references(schema, REQUEST)) == [(place, "media://e")]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"image_embeds": embeddings(), "image_grid_thw": grid(1, 4, 4)}, r"has 6 embeddings; .* \[1, 4, 4\] are 4"),
        ({"image_embeds": embeddings(), "image_grid_thw": grid(1, 3, 8)}, "are multiples of 2 above 0"),
        ({"image_embeds": embeddings(), "image_grid_thw": grid(-1, -4, 6)}, "are multiples of 2 above 0"),
        ({"image_embeds": embeddings(), "image_grid_thw": grid(2**40, 4, 6)}, "are multiples of 2 above 0"),
        ({"image_embeds": embeddings(), "image_grid_thw": np.ones((2, 3), np.int64)}, r"as int64 \(1, 3\), not"),
        ({"image_embeds": embeddings(width=9), "image_grid_thw": grid(1, 4, 6)}, r"as float32 \(any, 8\), not"),
        ({"image_embeds": embeddings() * np.nan, "image_grid_thw": grid(1, 4, 6)}, "not finite|NaN"),
        ({"image_embeds": embeddings()}, "lacks `image_grid_thw`"),
        ({"image_grid_thw": grid(1, 4, 6)}, "lacks `image_embeds`"),
        ({"image_embeds": embeddings(), "other": grid(1, 4, 6)}, "takes no `other`"),
    ],
)
def test_what_does_not_fit_the_model_does_not_reach_vllm(tmp_path: Path, arrays: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        prepared(tmp_path, arrays)


@pytest.mark.parametrize(
    ("config", "more"),
    [
        (CONFIG, {"options": {}}),
        ({**CONFIG, "model_type": "llava"}, {}),
        (CONFIG, {"options": {"engine": {"enable_mm_embeds": True}, "media": {"image": 0}}}),
        (CONFIG, {"runner": "openai-server", "source": "http://127.0.0.1:1/v1", "options": {"media": {"file": 0}}}),
    ],
)
def test_models_that_take_none_refuse_them(tmp_path: Path, config: Any, more: Any) -> None:
    with pytest.raises(ValidationError, match="'image_embeds' found using 'type' does not match any of the expected"):
        a_processor(tmp_path, config, **more).request.model_validate(REQUEST)
