"""An S3 server on loopback, for tests of what lies in an object store."""

from __future__ import annotations

import contextlib

import pytest


@contextlib.contextmanager
def s3_server():
    """Start one; yield its address."""
    started = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    started.start()
    yield "http://{}:{}".format(*started.get_host_and_port())
    started.stop()


def bucket(server, patch):
    """An empty bucket there, seen through a file system of its own."""
    s3fs = pytest.importorskip("s3fs")
    keys = {"AWS_ACCESS_KEY_ID": "who", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in {**keys, "AWS_ENDPOINT_URL": server}.items():
        patch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    there = s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)
    there.mkdir("bucket")
    return there
