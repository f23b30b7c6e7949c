"""Model types of tasks whose tests compare whole requests, from media to answer, with the library's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from transformers.models.auto.modeling_auto import MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES

from penstock.processors.multimodal.items import TOWERS
from penstock.workers.engine.transformers.supported_types import EQUAL
from penstock.workers.engine.transformers.tasks import Task
from tests.support import image_text_table, message_embedders
from tests.support.image_text_kinds import KINDS
from tests.what_runs.reasons import NO_TINY

_NO_PREPARATION = "only torchvision prepares its images, and Penstock runs without it"
_VIDEOS = "it reads videos"


def _equal(*kinds: str) -> dict[str, Sequence[str] | str]:
    return {kind: [EQUAL] for kind in kinds}


#: Outcomes by task and type, as `supported_types.json` has them; a test beside each list compares its types with these.
DEDICATED: Mapping[Task, Mapping[str, Sequence[str] | str]] = {
    Task.INSTANCE_SEGMENTATION: {
        **_equal("detr", "mask2former", "maskformer"),
        **dict.fromkeys(("eomt", "eomt_dinov3"), "it cuts images into parts and joins their masks"),
        "oneformer": "it reads a text beside the image",
        "videomt": _VIDEOS,
    },
    Task.OBJECT_DETECTION: {
        **_equal(
            "conditional_detr", "d_fine", "dab-detr", "deformable_detr", "detr", "rt_detr", "rt_detr_v2",
            "table-transformer", "yolos",
        ),
        **dict.fromkeys(("deimv2", "lw_detr"), NO_TINY),
        **dict.fromkeys(
            (
                "pp_doclayout_v2", "pp_doclayout_v3", "pp_doclayout_v4", "pp_ocrv5_mobile_det", "pp_ocrv5_server_det",
                "pp_ocrv6_medium_det", "pp_ocrv6_small_det",
            ),
            "it answers something other than boxes with classes",
        ),
        "rf_detr": _NO_PREPARATION,
    },
    Task.DEPTH_ESTIMATION: {
        **_equal("depth_anything", "dpt", "glpn"),
        **dict.fromkeys(("chmv2", "depth_pro", "tipsv2_dpt"), _NO_PREPARATION),
        "prompt_depth_anything": "it takes a second image, of coarse depths",
        "zoedepth": "its images are padded and its depths cut in a way of their own",
    },
    Task.ZERO_SHOT_CLASSIFICATION: _equal("clip", "metaclip_2", "siglip"),
    Task.ZERO_SHOT_OBJECT_DETECTION: {
        **_equal("grounding-dino", "mm-grounding-dino", "owlv2", "owlvit"),
        "omdet-turbo": _NO_PREPARATION,
    },
    Task.MASK_GENERATION: {
        **_equal("sam", "sam_hq"),
        **dict.fromkeys(("edgetam", "sam2", "sam3_tracker"), _NO_PREPARATION),
        **dict.fromkeys(("edgetam_video", "sam2_video", "sam3_video"), _VIDEOS),
    },
    Task.TEXT_IMAGE_EMBEDDING: {
        **_equal(*TOWERS),
        **message_embedders.OUTCOMES,
        **dict.fromkeys(
            ("colmodernvbert", "colpali", "colqwen2"),
            "it makes a vector for each token, and this task makes one for each text or image",
        ),
    },
    Task.SPEECH_RECOGNITION: {
        **dict.fromkeys(
            MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES, "only Whisper's networks tell the times of what is said"
        ),
        **_equal("whisper"),
    },
    Task.IMAGE_TEXT_TO_TEXT: {
        **_equal(*KINDS),
        **dict.fromkeys(image_text_table.NEEDS_TORCHVISION, "only torchvision prepares its images"),
        **image_text_table.UNTRIED,
    },
}  # fmt: skip
