"""Metadata documents of scenes, reduced to the relevant parts, with the structure of real products."""

from __future__ import annotations

from typing import Any


def sentinel2(
    level: str = "2A",
    *,
    baseline: str = "05.10",
    offsets: dict[int, int] | None = None,
    time: str = "2024-04-05T10:06:01.024Z",
) -> str:
    """Return `MTD_MSIL1C.xml` or `MTD_MSIL2A.xml`; by default with offset -1000 for each band."""
    values = dict.fromkeys(range(13), -1000) if offsets is None else offsets
    prefix = "RADIO" if level == "1C" else "BOA"
    quantification = "QUANTIFICATION_VALUE" if level == "1C" else "BOA_QUANTIFICATION_VALUE"
    listed = "".join(f'<{prefix}_ADD_OFFSET band_id="{i}">{v}</{prefix}_ADD_OFFSET>' for i, v in values.items())
    return f"""<?xml version="1.0" encoding="UTF-8" standalone="no"?>
<n1:Level-{level}_User_Product xmlns:n1="https://psd-14.sentinel2.eo.esa.int/PSD/User_Product_Level-{level}.xsd">
  <n1:General_Info>
    <Product_Info><PRODUCT_START_TIME>{time}</PRODUCT_START_TIME><PROCESSING_BASELINE>{baseline}</PROCESSING_BASELINE></Product_Info>
    <Product_Image_Characteristics>
      <Special_Values>
        <SPECIAL_VALUE_TEXT>NODATA</SPECIAL_VALUE_TEXT><SPECIAL_VALUE_INDEX>0</SPECIAL_VALUE_INDEX>
      </Special_Values>
      <{quantification} unit="none">10000</{quantification}>
      <Offsets>{listed}</Offsets>
    </Product_Image_Characteristics>
  </n1:General_Info>
</n1:Level-{level}_User_Product>"""


def landsat(
    level: str, bands: dict[int, tuple[str, str]], *, spacecraft: str = "LANDSAT_8", sun: str = "30.0"
) -> dict[str, Any]:
    """Return `*_MTL.json`; `bands` are scale and offset of the reflectances, which Landsat writes as text."""
    group = "LEVEL2_SURFACE_REFLECTANCE_PARAMETERS" if level == "L2SP" else "LEVEL1_RADIOMETRIC_RESCALING"
    values = {f"REFLECTANCE_MULT_BAND_{n}": mult for n, (mult, _) in bands.items()}
    values |= {f"REFLECTANCE_ADD_BAND_{n}": add for n, (_, add) in bands.items()}
    product = {
        "PRODUCT_CONTENTS": {"PROCESSING_LEVEL": level, "COLLECTION_NUMBER": "02"},
        "IMAGE_ATTRIBUTES": {
            "SPACECRAFT_ID": spacecraft,
            "DATE_ACQUIRED": "2020-01-27",
            "SCENE_CENTER_TIME": "07:02:33.1234560Z",
            "SUN_ELEVATION": sun,
        },
        "LEVEL1_RADIOMETRIC_RESCALING": {"REFLECTANCE_MULT_BAND_2": "2.0000E-05", "REFLECTANCE_ADD_BAND_2": "-0.1"},
        group: values,
    }
    return {"LANDSAT_METADATA_FILE": product}


def item(assets: dict[str, Any], **properties: Any) -> dict[str, Any]:
    """Return a STAC item."""
    return {
        "type": "Feature",
        "stac_version": "1.0.0",
        "id": "scene",
        "geometry": None,
        "properties": {"datetime": "2024-05-01T00:00:00Z", **properties},
        "links": [],
        "assets": assets,
    }
