from dataclasses import dataclass
from typing import Any


@dataclass
class HfConfig:
    values: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return self.values


@dataclass
class ModelConfig:
    hf_config: HfConfig
    dtype: Any
    is_multimodal_model: bool = False


@dataclass
class VllmConfig:
    model_config: ModelConfig
