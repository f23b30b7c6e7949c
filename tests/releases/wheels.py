"""The wheels of released versions: how they are kept, and how they are installed."""

from __future__ import annotations

import io
import lzma
import subprocess
import sys
import zipfile
from pathlib import Path

FOLDER = Path(__file__).parent
#: Bytes of one file.
MAX_BYTES = 900_000


def kept() -> list[Path]:
    """Return the kept releases, in the order of their names."""
    return sorted(FOLDER.glob("penstock-*.whl.xz"))


def release_of(path: Path) -> str:
    """Return `VERSION-COMMIT` of a kept release."""
    return path.name.removeprefix("penstock-").removesuffix(".whl.xz")


def pack(wheel: bytes) -> bytes:
    """Return a wheel as it is kept. All files of the archive together compress to half of their separate sizes."""
    stored = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(wheel)) as source, zipfile.ZipFile(stored, "w", zipfile.ZIP_STORED) as target:
        for info in source.infolist():
            kept_info = zipfile.ZipInfo(info.filename, info.date_time)
            kept_info.external_attr = info.external_attr
            target.writestr(kept_info, source.read(info))
    return lzma.compress(stored.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def install(release: Path, folder: Path) -> Path:
    """Install a kept release into a folder, without its dependencies, and return the folder."""
    version = release_of(release).partition("-")[0]
    wheel = folder / f"penstock-{version}-py3-none-any.whl"
    folder.mkdir(parents=True)
    wheel.write_bytes(lzma.decompress(release.read_bytes()))
    target = folder / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*pip, "--target", str(target), str(wheel)], check=True, capture_output=True, text=True)
    return target


def main(wheel: str, commit: str) -> None:
    """Keep the wheel of a commit."""
    version = Path(wheel).name.split("-")[1]
    packed = pack(Path(wheel).read_bytes())
    if len(packed) > MAX_BYTES:
        raise SystemExit(f"{len(packed)} bytes are more than {MAX_BYTES}")
    (FOLDER / f"penstock-{version}-{commit}.whl.xz").write_bytes(packed)


if __name__ == "__main__":
    main(*sys.argv[1:])
