from dataclasses import dataclass
from typing import Any


@dataclass
class PoolingOutput:
    data: Any


@dataclass
class PoolingRequestOutput:
    request_id: str
    outputs: PoolingOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int
    finished: bool
