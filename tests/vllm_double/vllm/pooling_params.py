from typing import Any


class PoolingParams:
    __struct_fields__ = ("use_activation", "dimensions", "task", "requires_token_ids", "extra_kwargs", "output_kind")

    def __init__(
        self, use_activation: bool | None = None, dimensions: int | None = None, task: str | None = None,
        requires_token_ids: bool = False, extra_kwargs: dict[str, Any] | None = None, output_kind: Any = object,
    ) -> None:  # fmt: skip
        self.use_activation, self.dimensions, self.task = use_activation, dimensions, task
        self.requires_token_ids, self.extra_kwargs, self.output_kind = requires_token_ids, extra_kwargs, output_kind
