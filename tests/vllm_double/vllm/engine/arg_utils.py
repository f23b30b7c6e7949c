import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from vllm.config import HfConfig, ModelConfig, VllmConfig

KNOWN = {
    "model", "runner", "dtype", "max_num_seqs", "enforce_eager", "model_impl", "skip_tokenizer_init",
    "enable_mm_embeds", "hf_overrides", "disable_log_stats", "gpu_memory_utilization",
    "hang",
}  # fmt: skip


class EngineArgs:
    def __init__(self, **arguments: Any) -> None:
        if unknown := set(arguments) - KNOWN:
            raise TypeError(f"EngineArgs got unexpected keyword arguments {sorted(unknown)}")
        self.arguments = arguments

    def create_engine_config(self) -> VllmConfig:
        config = json.loads(Path(self.arguments["model"], "config.json").read_text())
        return VllmConfig(ModelConfig(HfConfig(config), getattr(torch, self.arguments["dtype"])))


@dataclass
class AsyncEngineArgs:
    model: str
    runner: str = "auto"
    dtype: str = "auto"
    max_num_seqs: int | None = None
    gpu_memory_utilization: float = 0.92
    kv_cache_memory_bytes: int | None = None
    enable_lora: bool = False
    max_loras: int = 1
    max_model_len: int | None = None

    def create_engine_config(self) -> VllmConfig:
        given = {name: value for name, value in asdict(self).items() if name in KNOWN}
        return EngineArgs(**given).create_engine_config()
