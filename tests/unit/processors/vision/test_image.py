"""The image reader: pixels of all formats, and rejection of harmful files before they are decoded."""

from __future__ import annotations

import struct
import subprocess
import sys
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageFile
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from penstock.errors import MediaTooLarge, MediaUnreadable
from penstock.models import Limits
from penstock.processors.notes import noting
from penstock.processors.vision.image import MAX_PIXELS, measure, read_image

PHOTOS = Path(__file__).parents[5] / "shared" / "data" / "photo"
needs_photos = pytest.mark.skipif(
    not PHOTOS.is_dir(), reason="needs the shared data beside the checkout, ../shared/data"
)
NO_LIMITS = Limits()


def gradient(height: int = 20, width: int = 30) -> npt.NDArray[np.uint8]:
    rows, columns = np.mgrid[0:height, 0:width]
    return np.stack([rows * 8, columns * 8, 128 + 0 * rows], axis=-1).astype(np.uint8)


def save(path: Path, image: Image.Image, form: str, **options: Any) -> Path:
    image.save(path, format=form, **options)
    return path


@pytest.mark.parametrize("form", ["PNG", "TIFF", "BMP"])
def test_pixels_come_back_exactly_from_formats_without_loss(form: str, tmp_path: Path) -> None:
    path = save(tmp_path / "media", Image.fromarray(gradient()), form)
    np.testing.assert_array_equal(read_image(path, NO_LIMITS), gradient())


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF"])
def test_the_bytes_of_a_file_are_the_same_image(form: str, tmp_path: Path) -> None:
    path = save(tmp_path / "media", Image.fromarray(gradient()), form)
    np.testing.assert_array_equal(read_image(path.read_bytes(), NO_LIMITS), read_image(path, NO_LIMITS))
    assert measure(path.read_bytes(), NO_LIMITS) == measure(path, NO_LIMITS)
    with pytest.raises(MediaTooLarge):
        read_image(path.read_bytes(), Limits(max_pixels=1))


@pytest.mark.parametrize("form", ["JPEG", "WEBP"])
def test_pixels_come_back_nearly_from_formats_with_loss(form: str, tmp_path: Path) -> None:
    path = save(tmp_path / "media", Image.fromarray(gradient()), form, quality=95)
    assert np.abs(read_image(path, NO_LIMITS).astype(int) - gradient()).mean() < 8


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photograph_stands_as_its_camera_was_held(orientation: int, tmp_path: Path) -> None:
    upright = gradient()
    turned = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright),
        7: upright[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save(tmp_path / "media", Image.fromarray(np.ascontiguousarray(turned)), "PNG", exif=exif)
    np.testing.assert_array_equal(read_image(path, NO_LIMITS), upright)


def test_what_is_transparent_is_white(tmp_path: Path) -> None:
    pixels = np.zeros((1, 3, 4), dtype=np.uint8)
    pixels[0, :, 3] = [255, 128, 0]
    path = save(tmp_path / "media", Image.fromarray(pixels), "PNG")
    assert read_image(path, NO_LIMITS)[0].tolist() == [[0, 0, 0], [127, 127, 127], [255, 255, 255]]


def test_a_transparent_colour_of_a_palette_is_white(tmp_path: Path) -> None:
    image = Image.fromarray(np.array([[0, 1]], dtype=np.uint8)).convert("L")
    image.putpalette([255, 0, 0, 0, 255, 0])
    path = save(tmp_path / "media", image, "PNG", transparency=1)
    assert read_image(path, NO_LIMITS)[0].tolist() == [[255, 0, 0], [255, 255, 255]]


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_by_their_full_range(form: str, tmp_path: Path) -> None:
    numbers = np.array([[0, 257, 32896, 65535]], dtype=np.uint16)
    path = save(tmp_path / "media", Image.fromarray(numbers), form)
    assert read_image(path, NO_LIMITS)[0].tolist() == [[0] * 3, [1] * 3, [128] * 3, [255] * 3]


def png_of_16_bits(numbers: npt.NDArray[np.uint16]) -> bytes:
    """Return a PNG of grey (rows, columns) or RGB (rows, columns, 3) with 16 bits per channel (PNG, second edition)."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", numbers.shape[1], numbers.shape[0], 16, 0 if numbers.ndim == 2 else 2, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in numbers)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("colours", [(), (3,)])
@pytest.mark.parametrize(("peak", "dark"), [(4095, True), (300, True), (0, False), (8191, False), (65535, False)])
def test_twelve_bits_in_sixteen_are_noted_as_dark(colours: tuple[int, ...], peak: int, dark: bool) -> None:
    numbers = np.zeros((2, 4, *colours), np.uint16)
    numbers[1, 2] = peak
    notes: list[str] = []
    with noting(notes):
        for _ in range(2):
            read_image(png_of_16_bits(numbers), NO_LIMITS)
    assert len(notes) == dark
    assert all("no value above 4,095 of 65,535" in note and "multiply them by 16" in note for note in notes)


def test_a_dark_image_of_eight_bits_is_no_reason_for_a_note(tmp_path: Path) -> None:
    notes: list[str] = []
    with noting(notes):
        read_image(save(tmp_path / "media", Image.new("L", (4, 4), 3), "PNG"), NO_LIMITS)
    assert notes == []


def test_sixteen_bits_are_turned_too(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 3
    path = save(tmp_path / "media", Image.fromarray(np.array([[0, 65535]], dtype=np.uint16)), "PNG", exif=exif)
    assert read_image(path, NO_LIMITS)[0].tolist() == [[255] * 3, [0] * 3]


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_pixels_of_32_bits_are_refused_because_they_have_no_range(dtype: type, tmp_path: Path) -> None:
    path = save(tmp_path / "media", Image.fromarray(np.ones((4, 4), dtype=dtype)), "TIFF")
    with pytest.raises(MediaUnreadable, match="32 bits"):
        read_image(path, NO_LIMITS)


def test_printed_colours_become_screen_colours(tmp_path: Path) -> None:
    cmyk = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    red, green, blue = read_image(save(tmp_path / "media", cmyk, "JPEG"), NO_LIMITS)[4, 4].tolist()
    assert (red, green, blue) == pytest.approx((255, 0, 0), abs=4)


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG"])
def test_the_first_frame_of_a_moving_image_counts(form: str, tmp_path: Path) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("blue", "red")]
    options = {"lossless": True} if form == "WEBP" else {}
    path = save(tmp_path / "media", frames[0], form, save_all=True, append_images=frames[1:], **options)
    assert read_image(path, NO_LIMITS)[0, 0].tolist() == [0, 0, 255]


def png_header(width: int, height: int) -> bytes:
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head)) + b"\0\0\0\0IDAT"


@pytest.mark.parametrize("read", [read_image, measure])
def test_a_bomb_is_refused_by_its_header(read: Any, tmp_path: Path) -> None:
    path = tmp_path / "media"
    path.write_bytes(png_header(100_000, 100_000))
    with pytest.raises(MediaTooLarge, match=f"10000000000 pixels; at most {MAX_PIXELS} are allowed"):
        read(path, NO_LIMITS)
    path.write_bytes(png_header(1000, 1000))
    with pytest.raises(MediaTooLarge, match="1000000 pixels; at most 100000 are allowed"):
        read(path, Limits(max_pixels=100_000))


@pytest.mark.parametrize("form", ["GIF", "WEBP"])
def test_a_bomb_is_refused_in_formats_whose_readers_look_by_themselves(form: str, tmp_path: Path) -> None:
    options = {"lossless": True} if form == "WEBP" else {}
    content = bytearray(save(tmp_path / "media", Image.fromarray(gradient()), form, **options).read_bytes())
    if form == "GIF":  # the size of the screen, and of the frame on it
        frame = content.index(b"\x2c\0\0\0\0")
        content[6:10] = content[frame + 5 : frame + 9] = struct.pack("<HH", 60_000, 60_000)
    else:  # 14 bits of width and of height, less one, behind the signature of lossless data
        start = content.index(b"VP8L") + 9
        content[start : start + 4] = struct.pack("<I", 16_382 | 16_382 << 14)
    (tmp_path / "media").write_bytes(content)
    with pytest.raises(MediaTooLarge):
        read_image(tmp_path / "media", Limits(max_pixels=1000))


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow's about broken tags
@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF"])
def test_whatever_is_wrong_with_a_file_is_the_files_fault(form: str, tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    whole = save(tmp_path / "whole", Image.fromarray(noise), form).read_bytes()
    rng, refused = np.random.default_rng(2), 0
    for _ in range(60):
        content = bytearray(whole)
        for place in rng.integers(4, min(len(whole), 120), 4):
            content[place] = rng.integers(256)
        (tmp_path / "media").write_bytes(content)
        try:
            assert read_image(tmp_path / "media", Limits(max_pixels=10**6)).dtype == np.uint8
        except (MediaTooLarge, MediaUnreadable):
            refused += 1
    assert refused


def test_a_model_may_take_more_pixels_than_pillow_would(tmp_path: Path) -> None:
    path = tmp_path / "media"
    path.write_bytes(png_header(20_000, 20_000))
    assert measure(path, Limits(max_pixels=400_000_000)) == (20_000, 20_000)
    assert Image.MAX_IMAGE_PIXELS == MAX_PIXELS, "Pillow's guard is other people's too"


def test_formats_that_are_not_named_are_refused_even_if_pillow_could(tmp_path: Path) -> None:
    path = save(tmp_path / "media.png", Image.fromarray(gradient()), "PPM")
    with pytest.raises(MediaUnreadable, match="PNG, JPEG, WebP, TIFF, BMP, GIF, AVIF or HEIC"):
        read_image(path, NO_LIMITS)


@pytest.mark.filterwarnings("ignore:Truncated File Read:UserWarning")  # Pillow says it and goes on to the error
@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF"])
def test_a_file_that_is_cut_off_anywhere_is_unreadable(form: str, tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    whole = save(tmp_path / "whole", Image.fromarray(noise), form).read_bytes()
    assert not ImageFile.LOAD_TRUNCATED_IMAGES
    for length in range(0, int(len(whole) * 0.95), 97):
        (tmp_path / "media").write_bytes(whole[:length])
        with pytest.raises(MediaUnreadable) as refusal:
            read_image(tmp_path / "media", NO_LIMITS)
        assert str(tmp_path) not in refusal.value.detail


@pytest.mark.breadth(every=3)
@pytest.mark.filterwarnings("ignore:Truncated File Read:UserWarning")
@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF"])
def test_a_large_file_is_read_in_pieces_with_the_same_pixels_and_refusals(form: str, tmp_path: Path) -> None:
    """Files above 1 MiB are not read at once."""
    options = {"WEBP": {"lossless": True}, "JPEG": {"quality": 95}}.get(form, {})
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 256, (1100, 1300, 3), dtype=np.uint8))
    path = save(tmp_path / "media", noise, form, **options)
    whole = path.read_bytes()
    assert len(whole) > 1 << 20
    with Image.open(path) as image:
        np.testing.assert_array_equal(read_image(path, NO_LIMITS), np.asarray(image.convert("RGB")))
    for size in (1 << 20, (1 << 20) + 1):
        path.write_bytes(whole[:size])
        with pytest.raises(MediaUnreadable):
            read_image(path, NO_LIMITS)


@needs_photos
@pytest.mark.parametrize(
    ("name", "shape", "mean"),
    [
        ("chelsea.png", (300, 451), (147.7, 111.4, 86.8)),
        ("coffee.png", (400, 600), (158.6, 85.8, 51.5)),
        ("rocket.jpg", (427, 640), (52.3, 61.3, 82.3)),
        ("page.png", (191, 384), (171.5, 171.5, 171.5)),
        ("transparent_rgba.png", (150, 200), (211.0, 202.7, 204.1)),
        ("gray16.tif", (64, 64), (1.43, 1.43, 1.43)),
    ],
)
def test_real_photographs(name: str, shape: tuple[int, int], mean: tuple[float, ...]) -> None:
    image = read_image(PHOTOS / name, NO_LIMITS)
    assert measure(PHOTOS / name, NO_LIMITS) == shape == image.shape[:2]
    assert image.mean(axis=(0, 1)).tolist() == pytest.approx(mean, abs=0.1)


@needs_photos
def test_a_real_cut_off_photograph_is_unreadable() -> None:
    with pytest.raises(MediaUnreadable, match="cannot be decoded"):
        read_image(PHOTOS / "truncated.png", NO_LIMITS)


def test_a_tile_counts_although_the_image_shows_little_of_it(tmp_path: Path) -> None:
    path = save(tmp_path / "media", Image.fromarray(gradient(64, 64)), "TIFF")
    head = ImageFileDirectory_v2()
    sides = {256: 64, 257: 64, 322: 32_768, 323: 32_768, 324: 8, 325: 8}
    for tag, value in {**sides, 258: 8, 259: 1, 262: 1, 277: 1}.items():
        head[tag] = value
    with path.open("wb") as file:
        head.save(file)
    with pytest.raises(MediaTooLarge, match="tiles have 32768 x 32768 = 1073741824 pixels; at most"):
        read_image(path, NO_LIMITS)


@pytest.mark.parametrize("size_bytes", [50, 2 << 20], ids=["small", "large"])
def test_no_room_is_made_for_what_a_file_only_promises(size_bytes: int, tmp_path: Path) -> None:
    path = tmp_path / "media"
    path.write_bytes(png_header(30, 20)[:33] + b"\xf0\0\0\0IDAT" + bytes(size_bytes))
    tracemalloc.start()
    try:
        with pytest.raises(MediaUnreadable, match="the file is damaged or incomplete"):
            read_image(path, NO_LIMITS)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 10 * 2**20


READS_ALL = """
import sys
from pathlib import Path
from penstock.models import Limits
from penstock.processors.vision.image import read_image
before = set(sys.modules)
for path in Path(sys.argv[1]).iterdir():
    read_image(path, Limits())
print(*sorted(name for name in set(sys.modules) - before if name.startswith("PIL.")))
"""


def test_no_reader_is_imported_by_the_first_image_of_each_format(tmp_path: Path) -> None:
    """An IO process serves few jobs: what its template has not imported is imported anew by each."""
    for form in ("PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF"):
        save(tmp_path / form, Image.fromarray(gradient()), form)
    save(
        tmp_path / "MPO", Image.fromarray(gradient()), "MPO", save_all=True, append_images=[Image.new("RGB", (30, 20))]
    )
    done = subprocess.run([sys.executable, "-c", READS_ALL, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
