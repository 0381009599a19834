"""A folder for a fleet in S3, against a server that speaks as S3 does (moto)."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator

import boto3
import pytest
import torch
from test_artifact import INDUCTOR, NET, Recorded, X

from live_decisions import make_decision
from local_server import serving
from torchwise import artifact, environment
from torchwise._torch import cpu_isa_cache
from torchwise.artifact.remote_files import Folder, RemoteFolder, name_of
from torchwise.errors import InputError


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Start a server and return its address."""
    with serving(lambda port: [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]) as (port, _):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def client(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """A client of the server's own, beside the one that Torchwise has, and an empty bucket."""
    import fsspec

    settings = {
        "AWS_ENDPOINT_URL": server,
        "AWS_ACCESS_KEY_ID": "me",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_MAX_ATTEMPTS": "1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(cpu_isa_cache, "replay", lambda known: None)
    monkeypatch.setattr(environment, "default_device", lambda: "cpu")
    fsspec.filesystem("s3").clear_instance_cache()
    own = boto3.client("s3")
    own.create_bucket(Bucket="fleet")
    yield own
    for found in own.list_objects_v2(Bucket="fleet").get("Contents", []):
        own.delete_object(Bucket="fleet", Key=found["Key"])
    fsspec.filesystem("s3").clear_instance_cache()


def test_what_one_machine_saves_in_s3_its_like_load(
    client: object, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    decision = make_decision(NET, INDUCTOR, X)
    made = artifact.save("s3://fleet/models/", NET, decision, X, launcher=Recorded())
    key = f"models/{name_of(decision)}"
    assert client.get_object(Bucket="fleet", Key=key)["ContentLength"] == made.size  # type: ignore[attr-defined]
    assert artifact.load("s3://fleet/models", NET, X, trust=True) == decision
    assert os.listdir(str(tmp_path))
    assert artifact.info(f"s3://fleet/{key}").sha256 == made.sha256
    client.put_object(Bucket="fleet", Key=key, Body=b"damaged")  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=f"s3://fleet/{key} is no artifact, or is damaged"):
        artifact.load("s3://fleet/models", NET, trust=True)


def test_a_limit_holds_in_s3_and_what_others_put_there_is_seen(client: object) -> None:
    folder, decision = Folder("s3://fleet/models"), make_decision(NET, INDUCTOR, X)
    assert folder.entries() == []
    home = name_of(decision).partition("/")[0]
    client.put_object(Bucket="fleet", Key=f"models/{home}/a-b.tw", Body=b"1234")  # type: ignore[attr-defined]
    client.put_object(Bucket="fleet", Key="models/readme.txt", Body=b"1234")  # type: ignore[attr-defined]
    assert [entry.size for entry in folder.entries()] == [4]
    client.put_object(Bucket="fleet", Key=f"models/{home}/c-d.tw", Body=b"12")  # type: ignore[attr-defined]
    assert sorted(entry.size for entry in folder.entries()) == [2, 4]
    artifact.save("s3://fleet/models", NET, decision, X, launcher=Recorded(), limit_bytes=1)
    name = name_of(decision)
    assert set(folder.place.sizes()) == {"readme.txt", name, f"{name}.used"}


def test_a_bucket_that_is_not_there_is_named_before_anything_is_compiled(client: object) -> None:
    launcher = Recorded()
    with pytest.raises(InputError, match=r"s3://none/models/.* cannot be written"):
        artifact.save("s3://none/models", NET, make_decision(NET, INDUCTOR, X), X, launcher=launcher)
    assert launcher.builds == []
    with pytest.raises(InputError, match="s3://none/models has no artifact"):
        artifact.load("s3://none/models", torch.nn.Linear(4, 4), trust=True)


def test_a_server_that_is_down_is_an_error_with_its_cause(client: object, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        place = RemoteFolder("s3://fleet/models")
        place._store.clear_instance_cache()
        with pytest.raises(InputError, match=r"cannot be read \(.*[Cc]onnect.*check the address"):
            RemoteFolder("s3://fleet/models").read("a.tw")
