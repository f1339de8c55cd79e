"""Vendors the crates of the gem's native parts: vendor_gem.py MANIFEST FOLDER.

cargo vendor copies the crates of every platform, and those of Windows alone have 100 MB. Crates that no Linux build needs
keep their manifest, which cargo's resolver reads, and an empty library.
"""

import json
import pathlib
import shutil
import subprocess
import sys

PLATFORMS = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl"]


def main(manifest, folder):
    folder = pathlib.Path(folder)
    cargo = ["cargo", "--quiet", "vendor", "--locked", "--versioned-dirs", "--manifest-path", manifest, str(folder)]
    subprocess.run(cargo, check=True, stdout=subprocess.DEVNULL)
    keep = needed(manifest)
    for crate in sorted(folder.iterdir()):
        if crate.name not in keep:
            empty(crate)
    print(f"vendored {len(keep)} crates, {sum(file.stat().st_size for file in folder.rglob('*') if file.is_file()) >> 20} MB", file=sys.stderr)


def needed(manifest):
    """Returns the folders, NAME-VERSION, of the crates that builds for these platforms compile."""
    found = set()
    for platform in PLATFORMS:
        cargo = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", platform, "--manifest-path", manifest]
        metadata = json.loads(subprocess.run(cargo, check=True, stdout=subprocess.PIPE).stdout)
        nodes = {node["id"] for node in metadata["resolve"]["nodes"]}
        found |= {f"{package['name']}-{package['version']}" for package in metadata["packages"] if package["id"] in nodes and package["source"]}
    return found


def empty(crate):
    """Leaves a crate's manifest, an empty library, and its checksum, which Cargo.lock names."""
    checksum = json.loads((crate / ".cargo-checksum.json").read_text())
    for path in crate.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "Cargo.toml":
            path.unlink()
    (crate / "src").mkdir()
    (crate / "src/lib.rs").write_text("")
    # cargo reads the manifest's targets: each has to have its file.
    text = (crate / "Cargo.toml").read_text()
    for path in [line.split('"')[1] for line in text.splitlines() if line.startswith("path = ")]:
        (crate / path).parent.mkdir(parents=True, exist_ok=True)
        (crate / path).touch()
    (crate / ".cargo-checksum.json").write_text(json.dumps({"files": {}, "package": checksum["package"]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
