"""What a GPU's name tells: its brand and its compute capability, without NVML.

Source: the product names and brands that nvidia-smi -q prints, NVML's nvmlBrandType_t, and NVIDIA's
list of CUDA GPUs by compute capability.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# Beginnings of a name, without "NVIDIA ", and the brand as NVIDIA_REQUIRE_* spells it; the first
# that fits counts. GeForce RTX boards are plain GeForce to NVML. Where drivers disagree about a
# board there are two brands, and either satisfies a requirement.
BRANDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Tesla", ("tesla",)),
    ("GeForce", ("geforce",)),
    ("Quadro RTX", ("quadrortx",)),
    ("Quadro", ("quadro",)),
    ("TITAN RTX", ("titanrtx", "titan")),
    ("TITAN", ("titan",)),
    ("NVS", ("nvs",)),
    ("GRID", ("grid",)),
    ("RTX", ("nvidiartx",)),
    ("T400", ("nvidiartx", "nvidia")),
    ("T600", ("nvidiartx", "nvidia")),
    ("T1000", ("nvidiartx", "nvidia")),
)
# The last letter of a vGPU's profile: NVIDIA A10-12Q.
VIRTUAL_BRANDS = {"A": "vapps", "B": "vpc", "C": "vcs", "Q": "vws"}
BRAND_OF_BOARDS = ("nvidia",)  # A100, H100, L4: no word before the number

# Compute capability -> words of a name, one after the other; * ends a word that only begins so.
# From the top, the first that fits counts.
ARCHITECTURES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("12.1", ("GB10",)),
    ("12.0", ("GeForce RTX 50*", "RTX PRO")),
    ("10.3", ("B300", "GB300")),
    ("10.0", ("B100", "B200", "GB200")),
    ("9.0", ("H20", "H100", "H200", "H800", "GH200")),
    ("8.9", ("L2", "L4", "L20", "L40*", "GeForce RTX 40*", "6000 Ada", "5880 Ada", "5000 Ada")),
    ("8.9", ("4500 Ada", "4000 Ada", "4000 SFF Ada", "3500 Ada", "3000 Ada", "2000 Ada")),
    ("8.7", ("Orin",)),
    ("8.6", ("A2", "A10", "A10G", "A10M", "A16", "A40", "GeForce RTX 30*", "RTX A*", "RTXA*")),
    ("8.0", ("A30", "A30X", "A100", "A100X", "A800")),
    ("7.5", ("T4", "T4G", "T400", "T500", "T550", "T600", "T1000", "T1200", "TITAN RTX")),
    ("7.5", ("Quadro RTX", "GeForce RTX 20*", "GeForce GTX 16*", "GeForce MX450")),
    ("7.0", ("V100*", "TITAN V", "Quadro GV100")),
    ("6.0", ("P100", "Quadro GP100")),
    ("5.2", ("GeForce GTX TITAN X",)),  # TITAN X alone is the one after it
    ("6.1", ("P4", "P6", "P40", "GeForce GTX 10*", "GeForce GT 10*", "TITAN X", "TITAN Xp")),
    ("6.1", ("Quadro P*", "GeForce MX150", "GeForce MX250", "GeForce MX350")),
    ("5.2", ("M4", "M6", "M40", "M60", "GeForce GTX 9*")),
    ("5.0", ("M10", "GeForce GTX 75*", "GeForce 940M*")),
    ("3.7", ("K80",)),
    ("3.5", ("K20*", "K40*", "GeForce GTX TITAN", "GeForce GTX 78*")),
    ("3.0", ("K10", "K520", "GeForce GTX 6*", "GeForce GTX 7*")),
)


def brands(model: str) -> tuple[str, ...]:
    """Return the brands a GPU of this name may be; empty where the name tells nothing."""
    name = _without_maker(model)
    profile = name.rpartition("-")[2] if name.rpartition("-")[0] else ""
    memory, kind = profile.rstrip("ABCQ"), profile[-1:]
    if memory and memory.isascii() and memory.isdigit() and kind in VIRTUAL_BRANDS:
        return (VIRTUAL_BRANDS[kind],)
    for beginning, names in BRANDS:
        if name.startswith(beginning):
            return names
    return BRAND_OF_BOARDS if arch(model) else ()


def arch(model: str) -> str:
    """Return the compute capability of a GPU of this name: ``8.9``; empty if it is not known."""
    words = _without_maker(model).replace("-", " ").split()
    for capability, patterns in ARCHITECTURES:
        for pattern in patterns:
            if _has(words, pattern.split()):
                return capability
    return ""


def _without_maker(model: str) -> str:
    return model.strip().removeprefix("NVIDIA ").removeprefix("Graphics Device")


def _has(words: Sequence[str], wanted: Sequence[str]) -> bool:
    return any(
        all(map(_fits, words[start : start + len(wanted)], wanted))
        for start in range(len(words) - len(wanted) + 1)
    )


def _fits(word: str, pattern: str) -> bool:
    return word.startswith(pattern[:-1]) if pattern.endswith("*") else word == pattern
