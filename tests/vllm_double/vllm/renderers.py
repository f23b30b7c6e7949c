from vllm.config import VllmConfig


class BaseRenderer:
    def __init__(self, config: VllmConfig) -> None:
        self.config = config


def renderer_from_config(config: VllmConfig) -> BaseRenderer:
    return BaseRenderer(config)
