# SPDX-License-Identifier: Apache-2.0
"""Images as archives in the layout of the Open Container Initiative."""

import hashlib
import io
import json
import os
import tarfile

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_archive(image, name, command, archive, env=()):
    """Writes an image of one layer, as `ctr images import` reads it. `command` runs where a container names none."""
    layer = archive.with_suffix(".layer")
    with tarfile.open(layer, "w") as tar:
        tar.add(image.root, arcname=".")
    layer_bytes = layer.read_bytes()
    layer.unlink()

    def digest(data):
        return "sha256:" + hashlib.sha256(data).hexdigest()

    def described(kind, data):
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest(data), "size": len(data)}

    config = json.dumps({"architecture": ARCHITECTURES[os.uname().machine], "os": "linux",
                         "config": {"Entrypoint": list(command), "Env": list(env)},
                         "rootfs": {"type": "layers", "diff_ids": [digest(layer_bytes)]}}).encode()
    manifest = json.dumps({"schemaVersion": 2, "config": described("config.v1+json", config),
                           "layers": [described("layer.v1.tar", layer_bytes)]}).encode()
    index = json.dumps({"schemaVersion": 2, "manifests": [{
        **described("manifest.v1+json", manifest),
        "annotations": {"io.containerd.image.name": name}}]}).encode()
    with tarfile.open(archive, "w") as tar:
        files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}', "index.json": index}
        for data in (config, manifest, layer_bytes):
            files["blobs/" + digest(data).replace(":", "/")] = data
        for path, data in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
