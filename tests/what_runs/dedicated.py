"""Model types of tasks whose tests compare whole requests, from media to answer, with the library's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.processors.multimodal.items import TOWERS
from penstock.workers.engine.transformers.supported_types import EQUAL
from penstock.workers.engine.transformers.tasks import Task
from tests.support import image_text_table, message_embedders
from tests.support.image_text_kinds import KINDS
from tests.what_runs.reasons import NO_TINY

_NO_PREPARATION = "only torchvision prepares its images, and Penstock runs without it"


def _equal(*kinds: str) -> dict[str, Sequence[str] | str]:
    return {kind: [EQUAL] for kind in kinds}


#: Outcomes by task and type, as `supported_types.json` has them; a test beside each list compares its types with these.
DEDICATED: Mapping[Task, Mapping[str, Sequence[str] | str]] = {
    Task.INSTANCE_SEGMENTATION: _equal("detr", "mask2former", "maskformer"),
    Task.OBJECT_DETECTION: {
        **_equal(
            "conditional_detr", "d_fine", "dab-detr", "deformable_detr", "detr", "rt_detr", "rt_detr_v2",
            "table-transformer", "yolos",
        ),
        **dict.fromkeys(("deimv2", "lw_detr"), NO_TINY),
        "rf_detr": _NO_PREPARATION,
    },
    Task.DEPTH_ESTIMATION: {
        **_equal("depth_anything", "dpt", "glpn"),
        **dict.fromkeys(("chmv2", "depth_pro", "tipsv2_dpt"), _NO_PREPARATION),
        "prompt_depth_anything": "it takes a second image, of coarse depths",
        "zoedepth": "its images are padded and its depths cut in a way of their own",
    },
    Task.ZERO_SHOT_CLASSIFICATION: _equal("clip", "metaclip_2", "siglip"),
    Task.ZERO_SHOT_OBJECT_DETECTION: _equal("grounding-dino", "mm-grounding-dino", "owlv2", "owlvit"),
    Task.MASK_GENERATION: _equal("sam", "sam_hq"),
    Task.TEXT_IMAGE_EMBEDDING: {**_equal(*TOWERS), **message_embedders.OUTCOMES},
    Task.SPEECH_RECOGNITION: _equal("whisper"),
    Task.IMAGE_TEXT_TO_TEXT: {
        **_equal(*KINDS),
        **dict.fromkeys(image_text_table.NEEDS_TORCHVISION, "only torchvision prepares its images"),
        **image_text_table.UNTRIED,
    },
}  # fmt: skip
