"""Products of many rasters: each row of the table of `docs/reference/scene-formats.md` is read or refused.

The products are written by the libraries of their formats from a GeoTIFF, and their maps are those of the GeoTIFF.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from penstock.errors import InputError, InvalidInput, MediaUnreadable, MissingBands
from penstock.models import Model
from penstock.processors.geo.read.gdal import rasterio
from tests.support.geo.products import (
    CODES,
    NAMES,
    Source,
    source,
    write_hdf5,
    write_netcdf,
    write_safe,
    write_zarr,
    zipped,
)
from tests.support.geo.scenes import make_model, one_hot, read, segment, write_scene

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data" / "geo"
PAGE = ROOT / "docs" / "reference" / "scene-formats.md"
BANDS = [{"name": name, "mean": 0.0, "std": 1.0} for name in NAMES]
#: Bands of the models for Sentinel-2.
SENTINEL_2 = [{"name": name, "synonyms": [CODES[name][0]], "mean": 0.0, "std": 1.0} for name in NAMES]
UTM = rasterio.Affine(10, 0, 300_000, 0, -10, 5_000_040)


def neighbours(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return classes that depend on each number of a pixel and of its neighbours."""
    numbers = np.rint(pixels.astype(np.float64) * 10_000).astype(np.int64)
    weights = np.arange(1, len(numbers) + 1)[:, None, None]
    padded = np.pad((numbers * weights).sum(axis=0), 1)
    total = padded[1:-1, 1:-1] + 3 * padded[:-2, 1:-1] + 7 * padded[1:-1, 2:]
    return one_hot(total % 5)


def model(bands: list[dict[str, Any]] = BANDS, **options: Any) -> Model:
    return make_model(bands=bands, halo_px=1, stride_px=1, tile_px=128, **options)


def mapped(
    scene: Path, out: Path, used: Model | None = None, **request: Any
) -> tuple[npt.NDArray[Any], dict[str, Any]]:
    """Return the class map of a scene and its statistics."""
    sink, result = segment(scene, out, network=neighbours, model=used or model(), **request)
    assert result.data is not None
    return read(sink.artifacts["classes.tif"]), dict(result.data)


def same_place(one: Path, other: Path) -> None:
    """Check that two maps have one place, to a millionth of a pixel."""
    with rasterio.open(one) as first, rasterio.open(other) as second:
        assert first.crs == second.crs
        for corner in ((0, 0), (first.width, first.height)):
            assert ~first.transform @ (second.transform @ corner) == pytest.approx(corner, abs=1e-6)


@pytest.fixture(scope="module", params=["made", "betsiboka", "aquileia"])
def tif(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a GeoTIFF of six named bands: a small one, and real ones where they are."""
    real = {"betsiboka": "l8_betsiboka_20200127_6b.tif", "aquileia": "s2_l2a_aquileia_20190416_6b.tif"}
    if request.param in real:
        if not DATA.is_dir():
            pytest.skip("needs the shared data beside the checkout, ../shared/data")
        return DATA / real[request.param]
    numbers = np.random.default_rng(4).integers(1, 9000, (6, 211, 173)).astype(np.uint16)
    numbers[:, 20:40, 60:90] = 0
    return write_scene(
        tmp_path_factory.mktemp("made") / "made.tif", numbers, descriptions=NAMES, nodata=0, transform=UTM
    )


Writer = Callable[[Path, Source], Path]
#: Row of the table -> file name and writer.
READ: dict[str, tuple[str, Writer]] = {
    "NetCDF 4": ("scene.nc", write_netcdf),
    "NetCDF 4, rows from the south": ("scene.nc", lambda path, scene: write_netcdf(path, scene, upside_down=True)),
    "NetCDF classic (CDF-1, CDF-2)": (
        "scene.nc", lambda path, scene: write_netcdf(path, scene, version="NETCDF3_64BIT_OFFSET")
    ),
    "HDF5 with CF": ("scene.h5", write_hdf5),
    "Zarr version 2, zipped": ("scene.zarr.zip", lambda path, scene: write_zarr(path, scene, version=2)),
    "Zarr version 3, zipped": ("scene.zarr.zip", write_zarr),
    "Zarr version 3 with shards, zipped": (
        "scene.zip",
        lambda path, scene: write_zarr(path, scene, folder="", shards=(200, 240), chunks=(100, 120)),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def expected(tif: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[npt.NDArray[Any], dict[str, Any], Path]:
    out = tmp_path_factory.mktemp("expected") / "out"
    return *mapped(tif, out), out / "classes.tif"


@pytest.mark.parametrize("row", READ)
def test_the_map_of_a_product_is_that_of_its_geotiff(
    row: str, tif: Path, expected: tuple[npt.NDArray[Any], dict[str, Any], Path], tmp_path: Path
) -> None:
    name, write = READ[row]
    path = write(tmp_path / name, source(tif))
    classes, stats = mapped(path, tmp_path / "out")
    np.testing.assert_array_equal(classes, expected[0])
    assert stats["pixels"] == expected[1]["pixels"]
    assert [band["description"] for band in stats["bands"]] == [*NAMES]
    assert stats["radiometry"] == expected[1]["radiometry"]
    assert stats["notes"] == expected[1]["notes"]
    same_place(tmp_path / "out" / "classes.tif", expected[2])


def test_an_area_and_bands_of_a_request_are_those_of_the_geotiff(tmp_path: Path) -> None:
    numbers = np.random.default_rng(5).integers(1, 9000, (6, 300, 280)).astype(np.uint16)
    tif = write_scene(tmp_path / "a.tif", numbers, descriptions=NAMES, transform=UTM)
    path = write_netcdf(tmp_path / "a.nc", source(tif))
    request = {"bands": ["swir22", "blue", "red", "nir", "green", "swir16"]}
    area = {"bbox": [300_500, 4_998_000, 301_700, 4_999_300], "crs": "EPSG:32633"}
    both = [mapped(each, tmp_path / each.suffix[1:], **request, area=area) for each in (tif, path)]
    np.testing.assert_array_equal(both[0][0], both[1][0])
    by_number, _ = mapped(path, tmp_path / "numbers", bands=[6, 1, 3, 4, 2, 5], area=area)
    np.testing.assert_array_equal(by_number, both[1][0])


def test_scale_offset_fill_and_valid_range_of_cf_make_reflectance(tmp_path: Path) -> None:
    numbers = np.random.default_rng(6).integers(1000, 9000, (6, 90, 80)).astype(np.uint16)
    numbers[:, 5:9, 5:9], numbers[0, 20, 20], numbers[1, 30, 30] = 65_535, 500, 9500
    tif = write_scene(tmp_path / "a.tif", numbers, descriptions=NAMES, transform=UTM, nodata=65_535)
    packed = {"scale_factor": 1e-4, "add_offset": -0.1, "valid_range": np.array([600, 9400], np.uint16)}
    path = write_netcdf(tmp_path / "a.nc", source(tif), of_bands=packed)
    classes, stats = mapped(path, tmp_path / "nc")
    radiometry = stats["radiometry"]
    assert (radiometry["scale"], radiometry["offset"], radiometry["source"]) == (1e-4, -0.1, "file")
    assert (radiometry["nodata"], radiometry["mask"]) == (65_535, "nodata, valid range")
    expected, _ = mapped(tif, tmp_path / "tif", radiometry={"scale": 1e-4, "offset": -0.1})
    hidden = np.zeros((90, 80), bool)
    hidden[20, 20] = hidden[30, 30] = True
    assert (classes[0][hidden] == 255).all()
    far = np.ones((90, 80), bool)  # the network sees fill, not the numbers, beside hidden pixels
    far[19:23, 18:22] = far[29:33, 28:32] = False
    np.testing.assert_array_equal(classes[0][far], expected[0][far])


# ----- SAFE


@pytest.fixture
def product() -> dict[str, tuple[npt.NDArray[Any], int]]:
    """Return bands of a small product by code: 240 x 240 pixels of 10 m."""
    numbers = np.random.default_rng(7)
    sizes = {"B02": 10, "B03": 10, "B04": 10, "B8A": 20, "B11": 20, "B12": 20}
    bands = {
        code: (numbers.integers(1000, 9000, (2400 // m, 2400 // m)).astype(np.uint16), m) for code, m in sizes.items()
    }
    for values, metres in bands.values():
        values[: 400 // metres, : 600 // metres] = 0
    return bands


def as_files(folder: Path, bands: dict[str, tuple[npt.NDArray[Any], int]]) -> list[dict[str, Any]]:
    """Write the bands as GeoTIFFs, and return them as the `files` of a request."""
    found = []
    for code, (numbers, metres) in bands.items():
        place = UTM @ rasterio.Affine.scale(metres // 10)
        path = write_scene(folder / f"{code}.tif", numbers[None], transform=place)
        found.append({"media": str(path), "bands": [code]})
    return found


@pytest.mark.parametrize("level", ["2A", "1C"])
def test_a_zipped_safe_is_its_bands_with_the_offsets_of_its_baseline(
    level: str, product: dict[str, tuple[npt.NDArray[Any], int]], tmp_path: Path
) -> None:
    coarser = {f"{code}@60": (np.ones((40, 40), np.uint16), 60) for code in product} if level == "2A" else {}
    crs = rasterio.crs.CRS.from_epsg(32633)
    path = write_safe(tmp_path / "S2A.SAFE.zip", {**coarser, **product}, crs, UTM, level=level)
    classes, stats = mapped(path, tmp_path / "zip", model(SENTINEL_2))
    request = {"files": as_files(tmp_path, product), "radiometry": {"scale": 1e-4, "offset": -0.1, "nodata": 0}}
    expected, plain = mapped(None, tmp_path / "tif", model(SENTINEL_2), **request)  # type: ignore[arg-type]
    np.testing.assert_array_equal(classes, expected)
    assert classes.shape == (1, 240, 240)
    radiometry = stats["radiometry"]
    assert (radiometry["scale"], radiometry["offset"]) == (1e-4, -0.1)
    assert (radiometry["source"], radiometry["nodata"]) == ("sidecar", 0)
    assert stats["pixels"] == plain["pixels"]
    same_place(tmp_path / "zip" / "classes.tif", tmp_path / "tif" / "classes.tif")


def test_the_masks_in_a_safe_hide_clouds(product: dict[str, tuple[npt.NDArray[Any], int]], tmp_path: Path) -> None:
    scl = np.full((120, 120), 4, np.uint8)
    scl[60:80, 60:80] = 9
    crs = rasterio.crs.CRS.from_epsg(32633)
    path = write_safe(tmp_path / "a.zip", {**product, "SCL": (scl, 20)}, crs, UTM)
    classes, stats = mapped(path, tmp_path / "out", model(SENTINEL_2), mask={"kind": "scl"})
    assert (classes[0, 120:160, 120:160] == 255).all()
    plain, _ = mapped(path, tmp_path / "plain", model(SENTINEL_2))
    np.testing.assert_array_equal(classes[0, 160:], plain[0, 160:])
    assert stats["masks"] == [{"kind": "scl", "masked": stats["masks"][0]["masked"]}]


# ----- refused


def square(numbers: npt.NDArray[Any] | None = None) -> Source:
    values = np.ones((6, 40, 50), np.uint16) if numbers is None else numbers
    return Source(values, NAMES, rasterio.crs.CRS.from_epsg(32633), UTM, None)


def once() -> Source:
    """Return a scene for a file whose bands are replaced afterwards."""
    scene = square()
    return Source(scene.numbers, [f"{name}_once" for name in NAMES], scene.crs, scene.transform, None)


def times(file: Any) -> None:
    file.createDimension("time", 3)
    file.createVariable("time", "f8", ("time",)).setncatts({"units": "days since 2020-01-01", "standard_name": "time"})
    file["time"][:] = [0, 10, 20]


def series(path: Path, _scene: Source) -> Path:
    import netCDF4

    write_netcdf(path, once(), edit=times)
    with netCDF4.Dataset(path, "a") as file:
        for name in NAMES:
            file.createVariable(name, "u2", ("time", "y", "x")).setncatts({"grid_mapping": "crs"})
    return only(path, "_once")


def only(path: Path, left_out: str) -> Path:
    """Leave out the variables whose names end so, by a copy: netCDF cannot delete."""
    import h5py

    with h5py.File(path, "a") as file:
        for name in list(file):
            if name.endswith(left_out):
                del file[name]
    return path


def without_coordinates(path: Path, *, names: tuple[str, str], attributes: dict[str, str] | None = None) -> Path:
    import netCDF4

    with netCDF4.Dataset(path, "w") as file:
        file.createDimension(names[0], 40)
        file.createDimension(names[1], 50)
        for name in NAMES:
            file.createVariable(name, "u2", names).setncatts(attributes or {})
    return path


def swath(path: Path, _scene: Source) -> Path:
    import netCDF4

    without_coordinates(path, names=("rows", "columns"), attributes={"coordinates": "lat lon"})
    with netCDF4.Dataset(path, "a") as file:
        for name, units in (("lat", "degrees_north"), ("lon", "degrees_east")):
            file.createVariable(name, "f4", ("rows", "columns")).units = units
    return path


def rotated(path: Path, _scene: Source) -> Path:
    import netCDF4

    without_coordinates(path, names=("rlat", "rlon"))
    with netCDF4.Dataset(path, "a") as file:
        for name, standard in (("rlat", "grid_latitude"), ("rlon", "grid_longitude")):
            file.createVariable(name, "f4", (name,)).standard_name = standard
            file[name][:] = np.arange(len(file.dimensions[name]))
    return path


def geostationary(path: Path, _scene: Source) -> Path:
    mapping = {
        "grid_mapping_name": "geostationary", "perspective_point_height": 35_786_023.0, "sweep_angle_axis": "x",
        "longitude_of_projection_origin": -75.0, "semi_major_axis": 6_378_137.0, "semi_minor_axis": 6_356_752.31414,
    }  # fmt: skip
    return write_netcdf(path, square(), mapping=mapping)


def uneven(file: Any) -> None:
    file["x"][:] = np.arange(50) ** 1.2 * 10 + 300_000


def levels(path: Path, _scene: Source) -> Path:
    import netCDF4

    with netCDF4.Dataset(write_netcdf(path, once()), "a") as file:
        file.createDimension("level", 4)
        file.createDimension("member", 5)
        for name in NAMES:
            file.createVariable(name, "u2", ("level", "member", "y", "x")).setncatts({"grid_mapping": "crs"})
    return only(path, "_once")


def plain_hdf5(path: Path, _scene: Source) -> Path:
    import h5py

    with h5py.File(path, "w") as file:
        file["Science/Grids/Data"] = np.zeros((6, 40, 50), np.uint16)
    return path


def other_safe(folder: str) -> Writer:
    def write(path: Path, _scene: Source) -> Path:
        import zipfile

        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"{folder}/manifest.safe", "<a/>")
            archive.writestr(f"{folder}/measurement/a.tiff", b"II*\0")
        return path

    return write


def two_granules(path: Path, _scene: Source) -> Path:
    crs = rasterio.crs.CRS.from_epsg(32633)
    other = {"GRANULE/L2A_T33TUK/IMG_DATA/R10m/T33TUK_20240405T100601_B02_10m.jp2": b"\0"}
    return write_safe(path, {"B02": (np.ones((24, 24), np.uint16), 10)}, crs, UTM, others=other)


def files(path: Path, _scene: Source) -> Path:
    tree = path.with_suffix(".tree")
    tree.mkdir()
    write_scene(tree / "a.tif", np.ones((1, 8, 8), np.uint8))
    return zipped(path, tree)


def cdf5(path: Path, _scene: Source) -> Path:
    return write_netcdf(path, square(), version="NETCDF3_64BIT_DATA")


#: Row of the table -> file name, writer, error, and a part of its sentence.
REFUSED: dict[str, tuple[str, Writer, type[InputError], str]] = {
    "several times in one variable": (
        "a.nc", series, MediaUnreadable, r"blue has 3 times \(2020-01-01 to 2020-01-21\), and a scene has one"
    ),
    "swaths": ("a.nc", swath, MediaUnreadable, "blue is a swath: two-dimensional longitudes and latitudes"),
    "rotated poles": ("a.nc", rotated, MediaUnreadable, "blue is on a rotated pole"),
    "geostationary views": ("a.nc", geostationary, MediaUnreadable, "in the view of a geostationary satellite"),
    "uneven coordinates": (
        "a.nc", lambda p, _: write_netcdf(p, square(), mapping={"crs_wkt": square().crs.to_wkt()}, edit=uneven),
        MediaUnreadable, "coordinate x, whose values are not evenly spaced",
    ),
    "further dimensions": (
        "a.nc", levels, MediaUnreadable, r"the dimensions level \(4\), member \(5\) besides rows and columns"
    ),
    "no coordinates": (
        "a.nc", lambda p, _: without_coordinates(p, names=("y", "x")), MediaUnreadable, "blue has no coordinates"
    ),
    "HDF5 without CF, such as HDF-EOS": ("a.h5", plain_hdf5, MediaUnreadable, "has no coordinates of rows and columns"),
    "NetCDF classic CDF-5": ("a.nc", cdf5, MediaUnreadable, "it is a NetCDF file.*`gdal_translate"),
    "Sentinel-1 SAFE": (
        "a.zip", other_safe("S1A_IW_GRDH_1SDV_20200101T000000_20200101T000025_030000_0370A0_1234.SAFE"), InvalidInput,
        "a Sentinel-1 product, whose radar amplitudes are not calibrated. Sentinel-2 L1C and L2A are read",
    ),
    "Sentinel-3 SAFE": (
        "a.zip", other_safe("S3A_OL_1_EFR____20200101T000000.SEN3"), InvalidInput,
        "a Sentinel-3 product, which is a swath",
    ),
    "SAFE of several granules": ("a.zip", two_granules, InvalidInput, "has several granules"),
    "zip archives of other files": (
        "a.zip", files, MediaUnreadable, "holds neither a Sentinel-2 product in SAFE nor a Zarr store"
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", REFUSED)
def test_other_products_are_refused_with_the_reason(row: str, tmp_path: Path) -> None:
    name, write, error, sentence = REFUSED[row]
    path = write(tmp_path / name, square())
    with pytest.raises(error, match=sentence) as found:
        segment(path, tmp_path / "out", network=neighbours, model=model())
    assert str(tmp_path) not in str(found.value)


def test_a_missing_band_names_the_variables_that_are_not_read(tmp_path: Path) -> None:
    def more(file: Any) -> None:
        times(file)
        file.createVariable("nir", "u2", ("time", "y", "x"))

    scene = square()
    five = Source(scene.numbers[:5], [name for name in NAMES if name != "nir"], scene.crs, scene.transform, None)
    path = write_netcdf(tmp_path / "a.nc", five, edit=more)
    with pytest.raises(MissingBands, match="These variables are not read: nir has 3 times"):
        segment(path, tmp_path / "out", network=neighbours, model=model())


def test_the_names_of_a_files_bands_are_refused_for_a_product(tmp_path: Path) -> None:
    path = write_netcdf(tmp_path / "a.nc", square())
    with pytest.raises(InvalidInput, match="Choose among them with the `bands` of the request"):
        segment(None, tmp_path / "out", model=model(), files=[{"media": str(path), "bands": [*NAMES]}])


def test_the_page_lists_every_row_and_no_other() -> None:
    rows = re.findall(r"^\| (.+?) \| (read|refused) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert {row for row, kind in rows if kind == "read"} == {*READ, "Sentinel-2 L1C and L2A, zipped SAFE"}
    assert {row for row, kind in rows if kind == "refused"} == {*REFUSED, *HOSTILE}


#: Rows of the table that `test_archive.py`, `test_hdf5.py` and `test_zarr_store.py` show.
HOSTILE = (
    "encrypted archives", "links and paths outside of an archive", "external links and virtual datasets of HDF5",
    "Zarr with codecs that run code",
)  # fmt: skip
