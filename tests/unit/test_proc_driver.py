"""The kernel driver's texts: every published sample has an expectation here, or the test fails."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvhook.errors import FormatError
from nvhook.formats.gpu_information import (
    UNKNOWN_UUID,
    GpuInformation,
    normalize_bus_id,
    parse_information,
)
from nvhook.formats.proc_driver import (
    is_driver_version,
    is_known_uuid,
    masked_params,
    nvidia_majors,
    parse_devices,
    parse_params,
    parse_version,
)

DATA = Path(__file__).parents[1] / "data"
OLD_LAYOUT = "cards layout"

# (model, uuid, bus id, minor) of each GPU, or the words of the error
INFORMATION = {
    "REBUILT-a100_mig_enabled-535.txt": [
        (
            "NVIDIA A100-SXM4-80GB",
            "GPU-d65d5c48-5dc0-0ba0-d927-44ed91f93bc2",
            "0000:07:00.0",
            0,
        )
    ],
    "REBUILT-gb10_dgx_spark-580.142-domain_000f.txt": [
        ("NVIDIA GB10", "GPU-df62b222-e841-d6fc-1f28-ec48a0e2e9ed", "000f:01:00.0", 0)
    ],
    "dgx_station_v100-multi-cat.txt": [
        (
            "Tesla V100-DGXS-16GB",
            "GPU-011549f4-c21e-2548-f2e4-32ca07f30e3a",
            "0000:07:00.0",
            0,
        ),
        (
            "Tesla V100-DGXS-16GB",
            "GPU-96d8da38-4185-262e-bfda-4859b6674fc2",
            "0000:08:00.0",
            1,
        ),
        (
            "Tesla V100-DGXS-16GB",
            "GPU-a68a1264-d371-bc8c-9601-e62288467914",
            "0000:0e:00.0",
            2,
        ),
    ],
    "gt1030-kata-model_unknown.txt": [("Unknown", UNKNOWN_UUID, "0000:00:08.0", 0)],
    "gtx1070-410_blacklisted.txt": [
        ("GeForce GTX 1070", "GPU-4c3948ab-3bbf-e5d6-7f92-a113a4e5af1a", "0000:01:00.0", 0)
    ],
    "gtx1080-guest-uuid_unknown.txt": [("GeForce GTX 1080", UNKNOWN_UUID, "0000:02:03.0", 0)],
    "gtx1080ti+titan_x-410-two_files.txt": [
        ("GeForce GTX 1080 Ti", "GPU-d2c82170-9448-73b9-b5f7-017def7db653", "0000:17:00.0", 0),
        ("GeForce GTX TITAN X", "GPU-141c930c-f66f-7c61-169e-8ac93124cf9a", "0000:65:00.0", 1),
    ],
    "gtx980-guest-uuid_unknown-36bit.txt": [("GeForce GTX 980", UNKNOWN_UUID, "0000:00:05.0", 0)],
    "h100_80gb_hbm3-535.129.03.txt": [
        (
            "NVIDIA H100 80GB HBM3",
            "GPU-970f27e6-cdee-ffae-8328-1ca89ee2e452",
            "0000:62:00.0",
            5,
        )
    ],
    "l4_minor_only_two_lines.txt": [
        ("NVIDIA L4", "GPU-14ccb8b5-408a-580d-a541-65d7b24f2a05", "", 1)
    ],
    "mock_gpu-firmware_short.txt": [
        ("Mock GPU", "GPU-973baa8d-dc55-4ed3-904e-b9e9e9f798cb", "0000:01:00.0", 0)
    ],
    "old-cards-7050pv+7300-185.18.36.txt": OLD_LAYOUT,
    "old-cards-8800gts_sli-two-bios_unknown.txt": OLD_LAYOUT,
    "old-cards0-geforce210-260.txt": OLD_LAYOUT,
    "old-cards0-geforce2_mx-1.0-7xxx.txt": OLD_LAYOUT,
    "old-cards0-geforce6150-100.14.txt": OLD_LAYOUT,
    "old-cards0-quadro_fx_2500m-180.37.txt": OLD_LAYOUT,
    "rtx4090-595.84-open_nvml_broken.txt": [
        (
            "NVIDIA GeForce RTX 4090",
            "GPU-14af5a5d-2325-2e04-d461-cc011f2a25ad",
            "0000:01:00.0",
            0,
        )
    ],
    "rtx4090-595.84-partial_as_shown.txt": [
        ("NVIDIA GeForce RTX 4090", UNKNOWN_UUID, "0000:01:00.0", 0)
    ],
    "terminal_paste-h100.txt": [
        (
            "NVIDIA H100 80GB HBM3",
            "GPU-8b7f65af-d939-7ae1-25e5-098d5b1842da",
            "0000:62:00.0",
            5,
        )
    ],
    "v100_sxm2_16gb-excluded_label.txt": [
        ("Tesla V100-SXM2-16GB", "GPU-4a60a7a5-b6d2-b3d8-9b90-83e2bf63ece3", "0000:06:00.0", 0)
    ],
}

VERSIONS = {
    "version-180.44-x86_32.txt": "180.44",
    "version-319.32-ubuntu1310.txt": "319.32",
    "version-515.65.01-talos.txt": "515.65.01",
    "version-535-proprietary-x86_64.txt": "535.129.03",
    "version-535.171-open-no_arch.txt": "535.171",
    "version-555.42.06-open-sles15.txt": "555.42.06",
    "version-565.57.01-open-ubuntu2404.txt": "565.57.01",
    "version-570.86.15-proprietary-short_date.txt": "570.86.15",
    "version-580.142-open-gb10_aarch64.txt": "580.142",
    "version-580.173.02-open-short.txt": "580.173.02",
    "version-590.48.01-open-ubuntu2510.txt": "590.48.01",
    "version-595.91.07-open-no_builder.txt": "595.91.07",
    "version-615.71.09-minimal.txt": "615.71.09",
    "version-virtio_shim.txt": "580.95.05",
}

# a few settings each, and how many lines there are
PARAMS = {
    "capabilities-mig-config.txt": (3, {"DeviceFileMinor": "1", "DeviceFileMode": "256"}),
    "params-580.105.08-h100_node.txt": (
        42,
        {"ModifyDeviceFiles": "1", "TemporaryFilePath": "/var/tmp", "RegistryDwords": ""},
    ),
    "params-arch_laptop-sorted.txt": (
        42,
        {"EnableGpuFirmware": "0", "CoherentGPUMemoryMode": ""},
    ),
    "params-gentoo_video_group.txt": (42, {"DeviceFileGID": "27", "DeviceFileMode": "432"}),
    "params-modify_device_files_0.txt": (42, {"ModifyDeviceFiles": "0"}),
    "registry-180.44_x86.txt": (21, {"Mobile": "4294967295", "ModifyDeviceFiles": "1"}),
}

# what nvidia_majors gives
MAJORS = {
    "a100_hgx-cloud-no_gdrdrv.txt": {
        "nvidia": 195,
        "nvidia-nvlink": 234,
        "nvidia-caps": 235,
        "nvidia-uvm": 510,
        "nvidia-nvswitch": 511,
    },
    "both_names-different_majors.txt": {"nvidia": 195, "nvidia-uvm": 511},
    "desktop-550+-nvidia_modeset_ctl-no_uvm.txt": {
        "nvidia": 195,
        "nvidia-modeset": 195,
        "nvidiactl": 195,
    },
    "ec2_a10g-535-caps506.txt": {"nvidia": 195, "nvidia-uvm": 234, "nvidia-caps": 506},
    "jetson_jp7-uvm487.txt": {
        "nvidia": 195,
        "nvidia-modeset": 195,
        "nvidiactl": 195,
        "nvidia-uvm": 487,
    },
    "kata_guest-nvkvm-uvm243.txt": {"nvidia": 195, "nvidiactl": 195, "nvidia-uvm": 243},
    "leading_blanks_and_junk.txt": {"nvidia": 195, "nvidia-caps": 235},
    "missing_primary-only_uvm.txt": {"nvidia-uvm": 511},
    "negativo17_fedora26-uvm239.txt": {"nvidia": 195, "nvidia-uvm": 239},
    "plexos-rtx5060-open-nvswitch_nvlink_on_desktop.txt": {
        "nvidia": 195,
        "nvidiactl": 195,
        "nvidia-nvswitch": 242,
        "nvidia-nvlink": 243,
        "nvidia-caps": 244,
    },
    "proxmox-580.76.05-order_not_sorted.txt": {
        "nvidia": 195,
        "nvidia-modeset": 195,
        "nvidiactl": 195,
        "nvidia-nvswitch": 234,
        "nvidia-nvlink": 235,
        "nvidia-caps": 236,
        "nvidia-uvm": 511,
    },
    "trn-500s-gdrdrv_caps.txt": {
        "nvidia": 195,
        "nvidia-modeset": 195,
        "nvidiactl": 195,
        "nvidia-caps": 500,
    },
}


def sample(name: str) -> str:
    return (DATA / name).read_text()


@pytest.mark.parametrize("path", sorted(DATA.glob("proc_information/*")), ids=lambda p: p.name)
def test_information_sample(path: Path) -> None:
    text = path.read_text()
    name = path.name
    if name in VERSIONS:
        assert parse_version(text) == VERSIONS[name]
    elif name in PARAMS:
        count, some = PARAMS[name]
        params = parse_params(text)
        assert len(params) == count
        assert {key: params[key] for key in some} == some
    elif INFORMATION[name] == OLD_LAYOUT:
        with pytest.raises(FormatError, match=OLD_LAYOUT):
            parse_information(text)
    else:
        assert list(parse_information(text)) == [
            GpuInformation(model, uuid, bus_id, minor, False)
            for model, uuid, bus_id, minor in INFORMATION[name]
        ]


@pytest.mark.parametrize("path", sorted(DATA.glob("proc_devices/*")), ids=lambda p: p.name)
def test_devices_sample(path: Path) -> None:
    assert nvidia_majors(path.read_text()) == MAJORS[path.name]


def test_devices_names_are_exact_and_block_devices_do_not_count() -> None:
    majors = parse_devices(
        "Character devices:\n195 not-nvidia\n 10 misc\n\nBlock devices:\n  7 loop\n 10 nvidia\n"
    )
    assert majors == {"not-nvidia": 195, "misc": 10}


def test_devices_name_registered_twice_keeps_its_first_major() -> None:
    majors = parse_devices(sample("proc_devices/a100_hgx-cloud-no_gdrdrv.txt"))
    assert majors["infiniband_mad"] == 231


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ("195 nvidia-frontend\n509 nvidia\n", 195),
        ("509 nvidia-frontend\n195 nvidia\n", 195),
        ("509 nvidia-frontend\n509 nvidia\n", 509),
    ],
)
def test_devices_with_both_names(text: str, major: int) -> None:
    assert nvidia_majors(text) == {"nvidia": major}


def test_devices_with_both_names_and_neither_major_is_nvidias() -> None:
    with pytest.raises(FormatError, match="nvidia at 508 and nvidia-frontend at 509"):
        nvidia_majors("508 nvidia\n509 nvidia-frontend\n")


@pytest.mark.parametrize("label", ["GPU Excluded:\t", "Blacklisted:\t", "GPU Excluded:"])
def test_information_excluded_gpu(label: str) -> None:
    text = f"Model: \t\t NVIDIA L4\nDevice Minor: \t 3\n{label} Yes\n"
    assert parse_information(text)[0].excluded


def test_information_upper_case_ids_become_lower_case() -> None:
    (gpu,) = parse_information(
        "Model: X\nGPU UUID: GPU-DF62B222-E841-D6FC-1F28-EC48A0E2E9ED\nBus Location: 000F:0A:00.0\n"
    )
    assert gpu.uuid == "GPU-df62b222-e841-d6fc-1f28-ec48a0e2e9ed"
    assert gpu.pci_bus_id == "000f:0a:00.0"
    assert gpu.minor is None


def test_information_junk_around_is_ignored() -> None:
    text = "==> gpus/0000:01:00.0/information <==\nModel: A\nDevice Minor: 2\n\0\xff: junk\njunk\n"
    assert [(gpu.model, gpu.minor) for gpu in parse_information(text)] == [("A", 2)]


def test_information_without_a_model_line_is_told_apart_by_its_repeated_labels() -> None:
    text = "GPU UUID: GPU-1\nDevice Minor: 0\nGPU UUID: GPU-2\nDevice Minor: 1\n"
    assert [(gpu.uuid, gpu.minor) for gpu in parse_information(text)] == [
        ("GPU-1", 0),
        ("GPU-2", 1),
    ]


@pytest.mark.parametrize("text", ["", "\n\n", "DeviceFileMinor: 1\n", "Model\n"])
def test_information_without_a_gpu_is_an_error(text: str) -> None:
    with pytest.raises(FormatError, match="no GPU"):
        parse_information(text)


@pytest.mark.parametrize("minor", ["-1", "x", "", "1 2", "٣", "9" * 40])
def test_information_bad_minor_is_an_error(minor: str) -> None:
    with pytest.raises(FormatError, match="device minor"):
        parse_information(f"Model: A\nDevice Minor: {minor}\n")


def test_unknown_uuid_is_not_known() -> None:
    assert not is_known_uuid(UNKNOWN_UUID)
    assert is_known_uuid("GPU-14ccb8b5-408a-580d-a541-65d7b24f2a05")


@pytest.mark.parametrize(
    ("text", "bus_id"),
    [
        ("0000:01:00.0", "0000:01:00.0"),
        ("00000000:65:00.0", "0000:65:00.0"),
        ("000F:01:00.0", "000f:01:00.0"),
        ("10000:e1:00.0", "10000:e1:00.0"),
    ],
)
def test_bus_id(text: str, bus_id: str) -> None:
    assert normalize_bus_id(text) == bus_id


@pytest.mark.parametrize(
    "text",
    [
        *("", "00.05.0", "0000:01.00.0", "0000:01:00:0", "0000:01:00", "0000:+1:00.0"),
        *("0:1_0:0.0", "0000:01:20.0", "0000:01:00.8", "0000:100:00.0", "../../x:1:1.0"),
        "0000:01:00.0.0",
    ],
)
def test_bus_id_of_another_form_is_an_error(text: str) -> None:
    with pytest.raises(FormatError, match="not a PCI bus id"):
        normalize_bus_id(text)


@pytest.mark.parametrize(
    "text", ["", "GCC version:  gcc version 115.2.0\n", "NVRM version: none\n"]
)
def test_version_missing_is_an_error(text: str) -> None:
    with pytest.raises(FormatError, match="no driver version"):
        parse_version(text)


def test_version_keeps_its_leading_zeros() -> None:
    line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.054.03  Thu Jan 1\n"
    assert parse_version(line) == "535.054.03"


@pytest.mark.parametrize(
    "word", ["1.1", "15.2.0", "535", "535.", ".535", "535.1.2.3.4", "535.x", "1.0-7174"]
)
def test_version_words_that_are_none(word: str) -> None:
    assert not is_driver_version(word)


@pytest.mark.parametrize("name", sorted(PARAMS))
def test_masked_params_changes_one_setting_only(name: str) -> None:
    text = sample(f"proc_information/{name}")
    before, after = parse_params(text), parse_params(masked_params(text))
    assert after == {**before, "ModifyDeviceFiles": "0"}
    changed = [line for line in masked_params(text).splitlines() if line not in text.splitlines()]
    assert changed == ([] if before.get("ModifyDeviceFiles") == "0" else ["ModifyDeviceFiles: 0"])


def test_masked_params_is_not_fooled_by_the_name_inside_a_value() -> None:
    text = 'RegistryDwords: "ModifyDeviceFiles: 1"\nModifyDeviceFiles: 1'
    assert masked_params(text) == 'RegistryDwords: "ModifyDeviceFiles: 1"\nModifyDeviceFiles: 0\n'


@given(st.text())
def test_any_text_gives_a_value_or_a_format_error(text: str) -> None:
    for parse in (parse_information, parse_version, nvidia_majors, parse_params, masked_params):
        with suppress(FormatError):
            parse(text)


@given(st.text(st.characters(blacklist_categories=["Cs"])))
def test_masked_params_always_ends_up_with_zero(text: str) -> None:
    assert parse_params(masked_params(text))["ModifyDeviceFiles"] == "0"
