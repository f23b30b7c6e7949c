from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import ModelUnavailable, ObjectStoreUnavailable
from penstock.models import Model
from penstock.storage.objects.base import ObjectStore
from penstock.storage.objects.local import LocalStore
from penstock.workers.engine.sources import localise, verify
from tests.support.fake_hub import a_hub

WEIGHTS, CONFIG = b"weights", b"{}"
PIN = hashlib.sha256(WEIGHTS).hexdigest()


def a_model(source: str | Path, **fields: Any) -> Model:
    common = {"title": "M", "runner": "torch", "processor": "none", "revision": "1"}
    return Model(name="m", source=str(source), **{**common, **fields})


class TestLocalSources:
    def test_a_directory_stays_where_it_is_and_becomes_absolute(self, tmp_path: Path) -> None:
        (tmp_path / "w").write_bytes(WEIGHTS)
        relative = os.path.relpath(tmp_path)
        local = localise(a_model(relative, files={"w": PIN}), cache=tmp_path / "cache")
        assert Path(local.source).is_absolute()
        assert (Path(local.source) / "w").read_bytes() == WEIGHTS
        assert not (tmp_path / "cache").exists()

    def test_files_and_folders_inside_packages_are_found_without_importing_them(self, tmp_path: Path) -> None:
        local = localise(a_model("package:ukis_csmask/model_6b.onnx"), cache=tmp_path)
        assert Path(local.source).stat().st_size > 10_000_000
        assert Path(localise(a_model("package:penstock/catalogue"), cache=tmp_path).source).is_dir()
        with pytest.raises(ModelUnavailable, match="package 'no-such', which is not installed: pip install no-such"):
            localise(a_model("package:no_such/w"), cache=tmp_path)

    def test_what_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ModelUnavailable, match=f"source of model 'm' does not exist: {tmp_path}/gone"):
            localise(a_model(tmp_path / "gone"), cache=tmp_path)


class TestHashes:
    def test_right_ones_pass_and_wrong_or_missing_files_are_named(self, tmp_path: Path) -> None:
        (tmp_path / "sub").mkdir()
        (tmp_path / "sub" / "w").write_bytes(WEIGHTS)
        verify(a_model(tmp_path, files={"sub/w": PIN}))
        verify(a_model(tmp_path / "sub" / "w", sha256=PIN))
        wrong = "0" * 64
        with pytest.raises(ModelUnavailable, match=f"'sub/w' of model 'm' is not .* sha256 {PIN}, expected {wrong}"):
            verify(a_model(tmp_path, files={"sub/w": wrong}))
        with pytest.raises(ModelUnavailable, match=f"'w' of model 'm' is not .* sha256 {PIN}, expected {wrong}"):
            verify(a_model(tmp_path / "sub" / "w", sha256=wrong))
        with pytest.raises(ModelUnavailable, match="model 'm' lacks the file 'sub/v': No such file"):
            verify(a_model(tmp_path, files={"sub/v": PIN}))
        with pytest.raises(ModelUnavailable, match="source is a directory: list its hashes in `files`"):
            verify(a_model(tmp_path, sha256=PIN))

    @pytest.mark.parametrize("name", ["../w", "/etc/hosts", "a/../../w", "", "a\\b"])
    def test_names_that_lead_out_of_the_directory_are_refused(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(ModelUnavailable, match="leads out of its directory"):
            verify(a_model(tmp_path, files={name: PIN}))

    def test_a_file_is_hashed_again_only_when_it_changed(self, tmp_path: Path) -> None:
        path = tmp_path / "w"
        path.write_bytes(WEIGHTS)
        model = a_model(tmp_path, files={"w": PIN})
        verify(model)
        status = path.stat()
        # Other bytes of the same size and time: nobody looked.
        path.write_bytes(b"WEIGHTS")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        verify(model)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        with pytest.raises(ModelUnavailable, match="'w' of model 'm' is not the catalogue's"):
            verify(model)


class CountingStore(LocalStore):
    """Counts what is fetched."""

    fetched = 0

    def get_file(self, key: str, path: Path, **how: Any) -> Any:
        self.fetched += 1
        return super().get_file(key, path, **how)


class AbsentStore(LocalStore):
    """Has objects and hands none over."""

    def get_file(self, key: str, path: Path, **how: Any) -> Any:  # noqa: ARG002
        raise ObjectStoreUnavailable


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    store = CountingStore(tmp_path / "bucket")
    for key, data in {
        "models/m/model.safetensors": WEIGHTS,
        "models/m/1_Pooling/config.json": CONFIG,
        "models/model.onnx": WEIGHTS,
        "models/m-other/x": b"not ours",
    }.items():
        store.put_bytes(key, data, content_type="application/octet-stream")
    return store


def fetch(source: str, cache: Path, store: ObjectStore, **fields: Any) -> Path:
    opened: list[str] = []

    def open_store(url: str) -> ObjectStore:
        opened.append(url)
        return store

    path = Path(localise(a_model(source, **fields), cache=cache, s3=open_store).source)
    assert set(opened) <= {"s3://bucket"}
    return path


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class TestObjectStores:
    @pytest.mark.parametrize("source", ["s3://bucket/models/m", "s3://bucket/models/m/"])
    def test_everything_below_a_prefix_is_fetched_once_for_a_revision(
        self, store: CountingStore, tmp_path: Path, source: str
    ) -> None:
        path = fetch(source, tmp_path / "cache", store, files={"model.safetensors": PIN})
        assert content(path) == {"model.safetensors": WEIGHTS, "1_Pooling/config.json": CONFIG}
        assert fetch(source, tmp_path / "cache", store) == path
        assert store.fetched == 2
        assert fetch(source, tmp_path / "cache", store, revision="2") != path
        assert store.fetched == 4

    def test_one_object_is_a_file_of_its_name(self, store: CountingStore, tmp_path: Path) -> None:
        for _ in range(2):
            path = fetch("s3://bucket/models/model.onnx", tmp_path / "cache", store, sha256=PIN)
            assert (path.name, path.read_bytes()) == ("model.onnx", WEIGHTS)
        assert store.fetched == 1

    @pytest.mark.parametrize(
        ("source", "fields"),
        [
            ("s3://bucket/models/m", {"files": {"model.safetensors": "0" * 64}}),
            ("s3://bucket/models/m", {"files": {"config.json": PIN}}),
            ("s3://bucket/models/model.onnx", {"sha256": "0" * 64}),
        ],
    )
    def test_what_has_not_the_record_s_hashes_does_not_stay(
        self, store: CountingStore, tmp_path: Path, source: str, fields: dict[str, Any]
    ) -> None:
        with pytest.raises(ModelUnavailable, match=r"is not the catalogue's|lacks the file"):
            fetch(source, tmp_path / "cache", store, **fields)
        assert content(tmp_path / "cache") == {}

    def test_a_store_that_goes_away_leaves_nothing_half_done(self, store: CountingStore, tmp_path: Path) -> None:
        with pytest.raises(ObjectStoreUnavailable):
            fetch("s3://bucket/models/m", tmp_path / "cache", AbsentStore(store.root))
        assert content(tmp_path / "cache") == {}
        assert content(fetch("s3://bucket/models/m", tmp_path / "cache", store)).keys() == {
            "model.safetensors",
            "1_Pooling/config.json",
        }

    def test_what_a_killed_fetch_left_goes_with_the_next(self, store: CountingStore, tmp_path: Path) -> None:
        code = (
            "import os, signal, sys\n"
            "from pathlib import Path\n"
            "from tests.unit.workers.engine.test_sources import CountingStore, fetch\n"
            "class Deadly(CountingStore):\n"
            "    def get_file(self, *args, **how):\n"
            "        if self.fetched == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
            "        return super().get_file(*args, **how)\n"
            "fetch('s3://bucket/models/m', Path(sys.argv[1]), Deadly(Path(sys.argv[2])))"
        )
        cache = tmp_path / "cache"
        killed = subprocess.run([sys.executable, "-c", code, str(cache), str(store.root)], check=False)
        assert killed.returncode == -signal.SIGKILL
        assert len(content(cache)) == 2, "a lock and the first of two files: nothing was under way when it died"
        path = fetch("s3://bucket/models/m", cache, store)
        assert content(path).keys() == {"model.safetensors", "1_Pooling/config.json"}
        assert len(content(cache)) == 2

    def test_a_prefix_without_objects_is_named(self, store: CountingStore, tmp_path: Path) -> None:
        with pytest.raises(ModelUnavailable, match="there is nothing at s3://bucket/models/none"):
            fetch("s3://bucket/models/none", tmp_path / "cache", store)
        with pytest.raises(ModelUnavailable, match="from s3://bucket: it names no object or prefix"):
            fetch("s3://bucket", tmp_path / "cache", store)
        with pytest.raises(ModelUnavailable, match="no object store is configured"):
            localise(a_model("s3://bucket/x"), cache=tmp_path / "cache")


def in_cache(cache: Path, commit: str = "c" * 40, *, ref: str | None = None) -> None:
    """Lay a repository out as the hub's own client keeps it."""
    root = cache / "hub" / "models--org--tiny"
    snapshot, blobs = root / "snapshots" / commit, root / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for name, data in {"config.json": CONFIG, "model.safetensors": WEIGHTS}.items():
        blob = blobs / hashlib.sha256(data).hexdigest()
        blob.write_bytes(data)
        (snapshot / name).symlink_to(os.path.relpath(blob, snapshot))
    if ref is not None:
        (root / "refs").mkdir()
        (root / "refs" / ref).write_text(commit)


class TestTheHub:
    @pytest.mark.parametrize("revision", ["c" * 40, "v1"])
    def test_what_its_client_has_is_used_without_a_network(self, tmp_path: Path, revision: str) -> None:
        in_cache(tmp_path, ref="v1")
        model = a_model("hf://org/tiny", revision=revision, files={"model.safetensors": PIN})
        local = localise(model, cache=tmp_path)
        assert content(Path(local.source)).keys() == {"config.json", "model.safetensors"}
        assert local.published_at == f"https://huggingface.co/org/tiny/tree/{revision}"
        with pytest.raises(ModelUnavailable, match=r"'model\.safetensors' of model 'm' is not the catalogue's"):
            localise(model.model_copy(update={"files": {"model.safetensors": "0" * 64}}), cache=tmp_path)

    @pytest.mark.parametrize("repository", ["org/absent", "not a name"])
    def test_what_cannot_be_had_is_named_with_what_to_do(self, tmp_path: Path, repository: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            nobody = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ModelUnavailable) as failure:
            localise(a_model(f"hf://{repository}", revision="v1"), cache=tmp_path, hub=nobody)
        assert f"repository {repository!r} at revision 'v1'" in failure.value.detail
        assert "Run `penstock models fetch m` where the hub can be reached" in failure.value.detail

    def test_a_repository_is_fetched_once_without_its_pickles(self, tmp_path: Path) -> None:
        with a_hub("org/tiny", REPOSITORY) as hub:
            model = a_model("hf://org/tiny", revision="v1", files={"model.safetensors": PIN})
            path = Path(localise(model, cache=tmp_path, hub=hub).source)
        assert content(path) == {"config.json": CONFIG, "model.safetensors": WEIGHTS}
        # The hub is gone.
        assert Path(localise(model, cache=tmp_path, hub=hub).source) == path

    def test_torchs_own_files_are_fetched_for_the_runner_that_reads_their_tensors_only(self, tmp_path: Path) -> None:
        with a_hub("org/tiny", REPOSITORY) as hub:
            model = a_model("hf://org/tiny", revision="v1", runner="terratorch")
            path = Path(localise(model, cache=tmp_path, hub=hub).source)
        assert content(path).keys() == {"config.json", "model.safetensors", "Flood.pt"}

    def test_one_file_of_a_folder_is_fetched_alone_and_once(self, tmp_path: Path) -> None:
        model = a_model("hf://org/tiny/v1.5/two words.ckpt", revision="v1", runner="terratorch", sha256=PIN)
        with pytest.raises(ModelUnavailable, match=r"was not fetched from hf://org/tiny/v1\.5/two words\.ckpt yet"):
            localise(model, cache=tmp_path, fetch=False)
        with a_hub("org/tiny", {**REPOSITORY, "v1.5/two words.ckpt": WEIGHTS, "v1/two words.ckpt": b"older"}) as hub:
            path = Path(localise(model, cache=tmp_path, hub=hub).source)
            absent = model.model_copy(update={"source": "hf://org/tiny/v2/two words.ckpt"})
            with pytest.raises(ModelUnavailable, match="could not be fetched from the hub: repository 'org/tiny'"):
                localise(absent, cache=tmp_path, hub=hub)
        assert (path.name, path.read_bytes()) == ("two words.ckpt", WEIGHTS)
        assert {file.name for file in path.parent.parent.rglob("*") if file.is_file()} == {"two words.ckpt"}
        # The hub is gone.
        assert Path(localise(model, cache=tmp_path, hub=hub).source) == path
        with pytest.raises(ModelUnavailable, match="is not the catalogue's"):
            localise(model.model_copy(update={"sha256": "0" * 64}), cache=tmp_path)

    @pytest.mark.parametrize(
        ("file", "sentence"),
        [
            ("pytorch_model.bin", "the runner 'terratorch' reads no file like 'pytorch_model.bin', but .*ckpt"),
            ("v1.5", "reads no file like 'v1.5'"),
            ("v1/../../x.ckpt", "leads out of its directory"),
        ],
    )
    def test_a_file_that_the_runner_does_not_read_is_not_fetched(
        self, file: str, sentence: str, tmp_path: Path
    ) -> None:
        with a_hub("org/tiny", REPOSITORY) as hub, pytest.raises(ModelUnavailable, match=sentence):
            localise(a_model(f"hf://org/tiny/{file}", revision="v1", runner="terratorch"), cache=tmp_path, hub=hub)


REPOSITORY = {
    "config.json": CONFIG,
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"pickle",
    "Flood.pt": b"tensors",
}
