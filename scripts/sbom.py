"""Prints what a binary is built from, as CycloneDX: sbom.py BINARY SECONDS_OF_1970.

cargo-auditable wrote the list of crates into the binary: this reads it from there, so that the list is of this very file.
"""

import datetime
import hashlib
import json
import pathlib
import struct
import sys
import uuid
import zlib

SECTION = b".dep-v0"
MOST = 16 << 20  # of the list in bytes


def main(path, seconds):
    binary = pathlib.Path(path).read_bytes()
    json.dump(cyclonedx(crates(binary), hashlib.sha256(binary).hexdigest(), int(seconds)), sys.stdout, indent=1, sort_keys=True)
    print()


def crates(binary):
    """Returns cargo-auditable's list of packages, of a 64-bit ELF file."""
    if binary[:6] != b"\x7fELF\x02\x01":
        raise SystemExit("sbom: the file is no 64-bit ELF file of a little-endian machine: name a binary of scripts/packages")
    (sections,) = struct.unpack_from("<Q", binary, 40)
    size, count, names = struct.unpack_from("<HHH", binary, 58)
    header = lambda index: struct.unpack_from("<IIQQQQ", binary, sections + index * size)
    text = header(names)[4]
    for index in range(count):
        name, _, _, _, offset, length = header(index)
        if binary[text + name :].startswith(SECTION + b"\0"):
            return json.loads(zlib.decompressobj().decompress(binary[offset : offset + length], MOST))["packages"]
    raise SystemExit("sbom: the file has no section .dep-v0: build it with `cargo auditable`, as scripts/packages does")


def cyclonedx(packages, digest, seconds):
    purl = lambda package: f"pkg:cargo/{package['name']}@{package['version']}"
    run = [package for package in packages if package.get("kind", "runtime") == "runtime"]
    root = next(package for package in packages if package.get("root"))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        # The same file has the same number.
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digest)}",
        "metadata": {
            "timestamp": datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "application", "name": root["name"], "version": root["version"], "bom-ref": purl(root),
                "hashes": [{"alg": "SHA-256", "content": digest}],
            },
        },
        "components": [
            {"type": "library", "name": package["name"], "version": package["version"], "bom-ref": purl(package), "purl": purl(package)}
            for package in run
            if not package.get("root")
        ],
        "dependencies": [
            {"ref": purl(package), "dependsOn": [purl(packages[index]) for index in package.get("dependencies", []) if packages[index] in run]}
            for package in run
        ],
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
