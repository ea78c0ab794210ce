"""The C that reads what others write, with sanitizers: real files, spoilt ones, and libFuzzer's.

Each target gets NVHOOK_FUZZ_SECONDS of libFuzzer, 20 by default; 3600 before a release.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.native.core import SOURCES

HERE = Path(__file__).parent
DATA = HERE.parent / "data"
SECONDS = int(os.environ.get("NVHOOK_FUZZ_SECONDS", "20"))
SANITIZERS = "address,undefined"
WARNINGS = ("-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fno-sanitize-recover=all")

REPEATER = (
    "recording.c devices.c systemd.c bpf.c root.c syscalls.c request.c json.c blake2b.c splice.c"
)
# Target (a C file beside this one): the files of nvhook/_native it needs, what it starts from.
TARGETS = {
    "fuzz_state": ("request.c json.c blake2b.c", "oci/*/*/state*.json"),
    "fuzz_config": ("request.c splice.c json.c blake2b.c", "oci/*/*/config.json"),
    "fuzz_recording": (REPEATER, "recordings/*"),
}
# Those that #include some of them.
INCLUDED = {"fuzz_recording": ("observe.c", "repeat.c")}


def build(target: str, directory: Path, *command: str) -> Path:
    program = directory / target
    sources = [str(SOURCES / name) for name in TARGETS[target][0].split()]
    files = [str(HERE / f"{target}.c"), *sources, "-I", str(SOURCES), "-o", str(program)]
    subprocess.run([*command, *WARNINGS, *files], check=True)
    return program


def seeds(target: str, directory: Path) -> list[Path]:
    found = sorted(DATA.glob(TARGETS[target][1]))
    if target == "fuzz_recording":
        found += [that_holds(path, directory) for path in found]
    assert len(found) > 10
    return found


def that_holds(recording: Path, directory: Path) -> Path:
    """Write a recording as it would be where nothing is: what follows its looks is read, too."""
    absent = r"^((?:stamp|node|place|text|names|inodes|link|entries|bytes)\t.*\t)[^\t\n]*$"
    text = re.sub(absent.encode(), rb"\1-", recording.read_bytes(), flags=re.MULTILINE)
    text = re.sub(rb"^((?:has|same)\t.*\t)1$", rb"\g<1>0", text, flags=re.MULTILINE)
    path = directory / recording.name
    path.write_bytes(text)
    return path


@pytest.mark.parametrize("target", TARGETS)
def test_real_files_and_spoilt_ones(target: str, require, tmp_path: Path) -> None:
    require(shutil.which("gcc") is not None, "needs gcc")
    replay = str(HERE / "replay.c")
    program = build(target, tmp_path, "gcc", f"-fsanitize={SANITIZERS}", replay)
    done = subprocess.run(
        [program, *seeds(target, tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("target", TARGETS)
def test_what_a_fuzzer_finds(target: str, require, tmp_path: Path) -> None:
    require(shutil.which("clang") is not None, "needs clang and its libclang-rt package")
    program = build(target, tmp_path, "clang", f"-fsanitize=fuzzer,{SANITIZERS}")
    corpus, start = tmp_path / "corpus", tmp_path / "seeds"
    corpus.mkdir()
    start.mkdir()
    for number, path in enumerate(seeds(target, tmp_path)):
        shutil.copy(path, start / str(number))
    words = tmp_path / "words"
    names = [*TARGETS[target][0].split(), *INCLUDED.get(target, ())]
    texts = [(SOURCES / name).read_text() for name in names]
    found = sorted({word for text in texts for word in re.findall(r'"(\w[^"\\\n]*)"', text)})
    words.write_text("".join(f'"{word}"\n' for word in found))
    command = [program, f"-max_total_time={SECONDS}", "-timeout=10", f"-dict={words}"]
    command += ["-max_len=20000", f"-artifact_prefix={tmp_path}/", corpus, start]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
