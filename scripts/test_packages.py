"""Tests of packaging that need no package: configurations, the SBOM, the gem's crates, the checks of a release."""

import json
import os
import pathlib
import struct
import subprocess
import tempfile
import unittest
import zlib

import sbom
import vendor_gem

ROOT = pathlib.Path(__file__).resolve().parent.parent
OROSHI = os.environ.get("OROSHI") or str(pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug/oroshi")


def elf(section, content):
    """Returns a 64-bit ELF file with one section beside that of the names."""
    names = b"\0.names\0" + section + b"\0"
    header = lambda name, offset, length: struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, offset, length, 0, 0, 1, 0)
    table = header(0, 0, 0) + header(8, 64, len(content)) + header(1, 64 + len(content), len(names))
    sections = 64 + len(content) + len(names)
    start = b"\x7fELF\x02\x01" + bytes(10) + struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0, 0, sections, 0, 64, 0, 0, 64, 3, 2)
    return start + content + names + table


PACKAGES = [
    {"name": "a", "version": "1.0.0", "source": "crates.io"},
    {"name": "built-with", "version": "2.0.0", "source": "crates.io", "kind": "build"},
    {"name": "oroshi", "version": "0.1.0", "source": "local", "root": True, "dependencies": [0, 1]},
]


class Sbom(unittest.TestCase):
    def test_lists_what_is_inside(self):
        binary = elf(b".dep-v0", zlib.compress(json.dumps({"packages": PACKAGES}).encode()))
        found = sbom.cyclonedx(sbom.crates(binary), "00", 0)
        self.assertEqual([component["purl"] for component in found["components"]], ["pkg:cargo/a@1.0.0"])
        self.assertEqual(found["metadata"]["component"]["name"], "oroshi")
        self.assertEqual(found["metadata"]["timestamp"], "1970-01-01T00:00:00Z")
        ours = next(row for row in found["dependencies"] if row["ref"] == "pkg:cargo/oroshi@0.1.0")
        self.assertEqual(ours["dependsOn"], ["pkg:cargo/a@1.0.0"])

    def test_says_what_is_wrong_with_a_file(self):
        for binary, said in [(b"#!/bin/sh\n", "no 64-bit ELF"), (elf(b".text", b""), "no section .dep-v0")]:
            with self.assertRaises(SystemExit) as ended:
                sbom.crates(binary)
            self.assertIn(said, str(ended.exception))


class Crates(unittest.TestCase):
    def test_a_crate_of_other_platforms_keeps_its_manifest_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            crate = pathlib.Path(folder)
            (crate / "src").mkdir()
            (crate / "src/lib.rs").write_text("pub fn large() {}\n")
            (crate / "lib.a").write_bytes(bytes(1000))
            (crate / "Cargo.toml").write_text('[package]\nname = "w"\nversion = "1.0.0"\n[[example]]\nname = "e"\npath = "examples/e.rs"\n')
            (crate / ".cargo-checksum.json").write_text('{"files":{"lib.a":"00"},"package":"11"}')
            vendor_gem.empty(crate)
            files = sorted(str(path.relative_to(crate)) for path in crate.rglob("*") if path.is_file())
            self.assertEqual(files, [".cargo-checksum.json", "Cargo.toml", "examples/e.rs", "src/lib.rs"])
            self.assertEqual((crate / "src/lib.rs").read_text(), "")
            self.assertEqual(json.loads((crate / ".cargo-checksum.json").read_text()), {"files": {}, "package": "11"})


class Configurations(unittest.TestCase):
    def test_the_defaults_of_the_package_are_accepted(self):
        if not os.path.exists(OROSHI):
            self.skipTest(f"{OROSHI} is not built")
        for part in ("gate", "push"):
            with tempfile.TemporaryDirectory() as folder:
                # systemd makes the folder of the unit: RuntimeDirectory=.
                text = (ROOT / f"packaging/etc/{part}.toml").read_text()
                self.assertIn(f"unix:/run/oroshi-{part}/", text)
                self.assertIn(f"RuntimeDirectory=oroshi-{part}\n", (ROOT / f"packaging/systemd/oroshi-{part}.service").read_text())
                file = pathlib.Path(folder, f"{part}.toml")
                file.write_text(text.replace(f"/run/oroshi-{part}/", f"{folder}/"))
                ran = subprocess.run([OROSHI, part, "--config", str(file), "--check"], capture_output=True, text=True)
                self.assertEqual(ran.returncode, 0, ran.stderr)
                self.assertNotIn("may publish", ran.stderr)

    def test_the_example_of_start_is_a_file_of_the_environment(self):
        lines = [line for line in (ROOT / "packaging/etc/start/hello").read_text().splitlines() if not line.startswith("#")]
        self.assertEqual([line.partition("=")[0] for line in lines], ["LISTEN", "OPTIONS", "COMMAND"])
        unit = (ROOT / "packaging/systemd/oroshi-start@.service").read_text()
        for name in ("LISTEN", "OPTIONS", "COMMAND"):
            self.assertIn(f"${name}", unit)


class Release(unittest.TestCase):
    def run_release(self, *arguments):
        return subprocess.run([str(ROOT / "scripts/release"), *arguments], capture_output=True, text=True)

    def test_wrong_usage_is_explained(self):
        for arguments in ([], ["1.0"], ["v1.0.0"], ["1.0.0", "--fast"]):
            ran = self.run_release(*arguments)
            self.assertEqual((ran.returncode, ran.stdout), (2, ""))
            self.assertIn("scripts/release VERSION", ran.stderr)

    def test_another_version_is_refused_with_all_reasons(self):
        ran = self.run_release("99.98.97", "--quick")
        self.assertEqual((ran.returncode, ran.stdout), (1, ""))
        for reason in ("Cargo.toml: version", "version.rb: VERSION", "CHANGELOG.md: no heading"):
            self.assertIn(reason, ran.stderr)


if __name__ == "__main__":
    unittest.main()
