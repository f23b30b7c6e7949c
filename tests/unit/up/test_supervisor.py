"""Settings that travel to child processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from pydantic import SecretStr

from penstock.config import Settings
from penstock.config_tables import S3, DropRule
from penstock.up.supervisor import environment

_PRINT = """
import json
from penstock.config import load_settings
from penstock.up.supervisor import environment
print(json.dumps(environment(load_settings())))
"""


def test_a_child_reads_the_same_settings(tmp_path: Path) -> None:
    rule = DropRule(
        name="inbox", bucket="s3://in", model="m", prefix="a/", output_prefix="b/", input={"outputs": ["stats"]}
    )
    settings = Settings(
        data=tmp_path,
        redis_url="redis://h:1/0",
        secret=SecretStr("s=1;{}"),
        s3=S3(endpoint_url="http://h:2", access_key_id="a", secret_access_key=SecretStr("k")),
        allowed_hosts=("127.0.0.1:9",),
        models=(tmp_path / "m.toml",),
        drops=(rule,),
        dev=True,
        lease_s=2.5,
    )
    env = environment(settings)

    done = subprocess.run(
        [sys.executable, "-c", _PRINT], env=env, cwd=tmp_path, check=True, capture_output=True, text=True
    )

    assert json.loads(done.stdout) == env
    assert env["PENSTOCK_SECRET"] == "s=1;{}"
    assert json.loads(env["PENSTOCK_S3"])["secret_access_key"] == "k"
    assert "PENSTOCK_OBJECT_STORE" not in env
