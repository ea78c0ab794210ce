"""NVIDIA_REQUIRE_*: real images, and what a refusal says; the grammar: test_request_table."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nvhook.core import gpu_models
from nvhook.core.cuda_versions import CUDA_VERSIONS, cuda_version, is_beyond_table
from nvhook.core.inventory import Gpu
from nvhook.core.requirements import check
from nvhook.errors import HostError, NvhookError
from tests.unit.test_request import sample

VARIABLE = "NVIDIA_REQUIRE_CUDA"


def gpu(model: str, index: int = 0) -> Gpu:
    return Gpu(index, f"GPU-{index}", index, f"0000:0{index}:00.0", model)


def refusal(text: str, driver: str = "550.54.14", *models: str, cuda: str = "") -> str:
    """Return why a host does not satisfy a requirement, empty if it does."""
    gpus = tuple(gpu(model, index) for index, model in enumerate(models))
    try:
        check([(VARIABLE, text)], driver, cuda, gpus)
    except NvhookError as error:
        return str(error)
    return ""


def test_every_variable_and_every_gpu_counts() -> None:
    good, bad = ("A", "cuda>=12"), ("B", "cuda>=13")
    check([good, good], "550.54.14", "", ())
    with pytest.raises(HostError, match="unsatisfied condition: cuda>=13, B"):
        check([good, bad], "550.54.14", "", ())
    assert "GPU 1 NVIDIA L4" in refusal("arch>=9", "550.54.14", "NVIDIA H200", "NVIDIA L4")
    assert refusal("arch>=8", "550.54.14", "NVIDIA H200", "NVIDIA L4") == ""


def test_without_a_gpu_only_driver_and_cuda_are_looked_at() -> None:
    assert refusal("arch>=99,brand=none,cuda>=12") == ""
    assert "unsatisfied condition: arch>=99" in refusal("arch>=99,cuda>=13")


def test_a_refusal_says_what_the_host_has_and_the_way_out() -> None:
    assert refusal("cuda>=12.4 brand=tesla,driver>=470", "535.54.03", "NVIDIA L4") == (
        "requirement error: unsatisfied condition: cuda>=12.4 (or 1 others), NVIDIA_REQUIRE_CUDA: "
        "this host has driver 535.54.03 with CUDA 12.2, GPU 0 NVIDIA L4: brand nvidia, arch 8.9 "
        "(hint: update the driver or use an image for an older CUDA, or -e "
        "NVIDIA_DISABLE_REQUIRE=1)"
    )


@pytest.mark.parametrize(
    ("text", "driver", "model", "unknown"),
    [
        ("brand=tesla", "550.54.14", "Unknown", "brand=tesla"),
        ("arch>=8", "550.54.14", "NVIDIA Next 9000", "arch>=8"),
        ("brand=tesla,cuda>=12", "550.54.14", "Unknown", "brand=tesla,cuda>=12"),
        ("cuda>=99 arch>=8", "550.54.14", "Unknown", "arch>=8"),
        ("cuda>=13.9", "700.10", "NVIDIA L4", "cuda>=13.9"),
        ("cuda>=1.0", "96.43", "NVIDIA L4", "cuda>=1.0"),
        # One false term decides, and so does one alternative that holds.
        ("brand=tesla,cuda>=99", "550.54.14", "Unknown", ""),
        ("brand=tesla cuda>=12", "550.54.14", "Unknown", None),
        ("cuda>=13.0", "700.10", "NVIDIA L4", None),
        ("cuda<13.0", "700.10", "NVIDIA L4", ""),
        ("cuda!=13.0", "700.10", "NVIDIA L4", None),
    ],
)
def test_what_nobody_can_tell_is_said_and_not_guessed(
    text: str, driver: str, model: str, unknown: str | None
) -> None:
    said = refusal(text, driver, model)
    if unknown is None:
        assert said == ""
    elif unknown:
        assert f"unsatisfied condition: can't tell whether {unknown} holds" in said
        assert "NVIDIA_DISABLE_REQUIRE=1" in said
    else:
        assert said
        assert "can't tell" not in said


def test_a_known_cuda_version_counts_before_the_drivers() -> None:
    assert refusal("cuda>=12.4", "535.54.03", cuda="12.4") == ""
    assert "CUDA 11.0" in refusal("cuda>=12.4", "550.54.14", cuda="11.0")


T4, L4, GEFORCE, RTX = "Tesla T4", "NVIDIA L4", "NVIDIA GeForce RTX 4090", "NVIDIA RTX A6000"
# sample -> (driver, model, does it start)
IMAGES: dict[str, list[tuple[str, str, bool]]] = {
    "cuda-9.0-base.txt": [("375.26", T4, False), ("384.81", T4, True)],
    "cuda-10.2.txt": [
        ("440.33.01", GEFORCE, True),
        ("418.87.00", "Tesla V100-SXM2-16GB", True),
        ("418.87.00", GEFORCE, False),
        ("430.26", "Tesla V100-SXM2-16GB", False),
    ],
    "cuda-11.8.txt": [
        ("470.57.02", GEFORCE, False),
        ("515.43.04", RTX, True),
        ("450.80.02", T4, True),
        ("520.61.05", GEFORCE, True),
    ],
    "cuda-12.1-full.txt": [("525.85.05", GEFORCE, True), ("515.43.04", GEFORCE, False)],
    "cuda-12.2-arm64.txt": [("535.54.03", L4, True), ("525.85.05", L4, False)],
    "cuda-12.4-full.txt": [("535.054.03", L4, True), ("545.23", L4, False)],
    "cuda-12.9-two_clauses.txt": [("550.54.14", T4, True), ("550.54.14", L4, False)],
    "cuda-13.1-full-rapids.txt": [("580.65.06", L4, True), ("580.65.06", GEFORCE, False)],
    "cuda-13.3-disable_require.txt": [("595.71.05", GEFORCE, False)],
}


@pytest.mark.parametrize("name", IMAGES)
def test_image_of_a_real_registry(name: str) -> None:
    text = sample(name)[VARIABLE]
    for driver, model, starts in IMAGES[name]:
        assert (refusal(text, driver, model) == "") is starts, (driver, model)


@pytest.mark.parametrize(
    ("model", "brands", "arch"),
    [
        ("Tesla T4", ("tesla",), "7.5"),
        ("Tesla V100-SXM2-16GB", ("tesla",), "7.0"),
        ("Tesla P100-PCIE-16GB", ("tesla",), "6.0"),
        ("NVIDIA A100-SXM4-80GB", ("nvidia",), "8.0"),
        ("A100-SXM4-40GB", ("nvidia",), "8.0"),
        ("NVIDIA A10G", ("nvidia",), "8.6"),
        ("NVIDIA H100 80GB HBM3", ("nvidia",), "9.0"),
        ("NVIDIA H100 NVL", ("nvidia",), "9.0"),
        ("NVIDIA H200", ("nvidia",), "9.0"),
        ("NVIDIA GH200 480GB", ("nvidia",), "9.0"),
        ("NVIDIA B200", ("nvidia",), "10.0"),
        ("NVIDIA L40S", ("nvidia",), "8.9"),
        ("NVIDIA GB10", ("nvidia",), "12.1"),
        ("NVIDIA GeForce RTX 5090", ("geforce",), "12.0"),
        ("NVIDIA GeForce RTX 3090", ("geforce",), "8.6"),
        ("GeForce GTX 1080 Ti", ("geforce",), "6.1"),
        ("GeForce GTX TITAN X", ("geforce",), "5.2"),
        ("NVIDIA TITAN RTX", ("titanrtx", "titan"), "7.5"),
        ("Quadro RTX 8000", ("quadrortx",), "7.5"),
        ("Quadro P4000", ("quadro",), "6.1"),
        ("NVIDIA RTX A6000", ("nvidiartx",), "8.6"),
        ("NVIDIA RTX 6000 Ada Generation", ("nvidiartx",), "8.9"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", ("nvidiartx",), "12.0"),
        ("NVIDIA A10-12Q", ("vws",), "8.6"),
        ("NVIDIA RTXA6000-24Q", ("vws",), "8.6"),
        ("NVIDIA A100-40C", ("vcs",), "8.0"),
        ("Unknown", (), ""),
        ("", (), ""),
        ("NVIDIA", (), ""),
    ],
)
def test_a_name_tells_brand_and_compute_capability(
    model: str, brands: tuple[str, ...], arch: str
) -> None:
    assert (gpu_models.brands(model), gpu_models.arch(model)) == (brands, arch)


@pytest.mark.parametrize(
    ("driver", "cuda"),
    [
        ("304.137", "5.0"),
        ("375.26", "8.0"),
        ("384.81", "9.0"),
        ("535.054.03", "12.2"),
        ("540.4.0", "12.2"),
        ("550.54.14", "12.4"),
        ("595.71.05", "13.2"),
        ("96.43", ""),
        ("nonsense", ""),
    ],
)
def test_a_driver_branch_tells_the_cuda_version(driver: str, cuda: str) -> None:
    assert cuda_version(driver) == cuda
    assert not is_beyond_table(driver)


def test_the_table_is_sorted_and_ends_somewhere() -> None:
    assert sorted(CUDA_VERSIONS, reverse=True) == list(CUDA_VERSIONS)
    assert is_beyond_table("700.1")


@given(st.text(), st.text(), st.text())
@example("brand=" + "x" * 1000, "550.54.14", "\x1b[31m" * 50)
@example("cuda>=" + "9" * 99, "550.54.14", "")
def test_arbitrary_text_raises_only_nvhook_errors(text: str, driver: str, model: str) -> None:
    try:
        check([(text, text)], driver, "", (gpu(model),))
    except NvhookError as error:
        line = f"nvhook: {error}"
        assert len(line) < 300
        assert line.isprintable()


@given(st.lists(st.sampled_from(["cuda", "=", ">=", "!", "12", ".", ",", " ", "brand", "<", "t"])))
def test_almost_right_text_raises_only_nvhook_errors(parts: list[str]) -> None:
    said = refusal("".join(parts), "550.54.14", "NVIDIA L4")
    assert said == "" or said.startswith("requirement error: ")
