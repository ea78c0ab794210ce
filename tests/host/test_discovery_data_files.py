"""Files that tell Vulkan, EGL, OpenCL, OptiX and Xorg where the driver is."""

import pytest

from nvhook.host.files import find_data_files, find_named_libraries, find_xorg_modules

ICD = "vulkan/icd.d/nvidia_icd.json"


def data_files(host, machine: str = "x86_64") -> dict[str, tuple[str, str]]:
    files = find_data_files(str(host.root), machine)
    for file in files:
        assert file.host_path == f"{host.root}{file.path}"
    return {file.name: (file.group, file.path) for file in files}


@pytest.mark.parametrize(
    ("path", "in_container"),
    [
        (f"/etc/{ICD}", f"/etc/{ICD}"),
        (f"/usr/share/{ICD}", f"/usr/share/{ICD}"),
        (f"/usr/local/share/{ICD}", f"/usr/local/share/{ICD}"),
        (f"/{ICD}", f"/etc/{ICD}"),
        (f"/home/kubernetes/bin/nvidia/{ICD}", f"/etc/{ICD}"),
        (f"/run/opengl-driver/share/{ICD}", f"/etc/{ICD}"),
        (
            "/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json",
            "/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json",
        ),
    ],
)
def test_a_file_stands_where_programs_look_for_it(host, path: str, in_container: str) -> None:
    host.put(path, b"{}")
    assert data_files(host) == {in_container: ("vulkan", path)}


def test_of_two_files_for_one_thing_the_first_counts(host) -> None:
    host.put(f"/etc/{ICD}", b"{}")
    host.put(f"/usr/share/{ICD}", b"{}")
    host.put("/usr/share/vulkan/icd.d/nvidia_icd.x86_64.json", b"{}")
    host.put("/usr/share/vulkan/icd.d/nvidia_icd.aarch64.json", b"{}")
    assert list(data_files(host)) == [f"/etc/{ICD}"]


def test_the_machine_is_in_the_name(host) -> None:
    for machine in ("x86_64", "aarch64"):
        host.put(f"/usr/share/vulkan/icd.d/nvidia_icd.{machine}.json", b"{}")
    assert list(data_files(host, "aarch64")) == ["/usr/share/vulkan/icd.d/nvidia_icd.aarch64.json"]


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ('{"ICD": {"library_path": "/usr/lib64/libGLX_nvidia.so.0"}}', True),
        ('{"layer": {"library_path": "/usr/lib64/libGLX_nvidia.so.0"}}', True),
        ('{"ICD": {"library_path": "libGLX_nvidia.so.0"}}', False),
        ('{"ICD": {"library_path": "/usr/lib64/absent.so"}}', False),
        ('{"ICD": {"library_path": 3}}', False),
        ('{"ICD": "/usr/lib64/libGLX_nvidia.so.0"}', False),
        ("[1]", False),
        ("nonsense", False),
    ],
)
def test_a_library_that_a_manifest_names_by_its_path(host, text: str, is_found: bool) -> None:
    """ctk811: in an image with other directories that path must exist, too."""
    host.put(f"/etc/{ICD}", text.encode())
    host.library("/usr/lib64/libGLX_nvidia.so.550.54.15", "libGLX_nvidia.so.0")
    host.link("/usr/lib64/libGLX_nvidia.so.0", "libGLX_nvidia.so.550.54.15")
    found = find_named_libraries(str(host.root), find_data_files(str(host.root), "x86_64"))
    named = [("/usr/lib64/libGLX_nvidia.so.0", "/usr/lib64/libGLX_nvidia.so.550.54.15")]
    assert [(file.name, file.path) for file in found] == (named if is_found else [])


def test_groups_and_links(host) -> None:
    host.put("/etc/OpenCL/vendors/nvidia.icd")
    host.put("/opt/optix.bin")
    host.link("/usr/share/nvidia/nvoptix.bin", "/opt/optix.bin")
    host.put("/usr/share/glvnd/egl_vendor.d/10_nvidia.json")
    host.put("/usr/share/glvnd/egl_vendor.d/50_mesa.json")
    assert data_files(host) == {
        "/etc/OpenCL/vendors/nvidia.icd": ("opencl", "/etc/OpenCL/vendors/nvidia.icd"),
        "/usr/share/nvidia/nvoptix.bin": ("optix", "/opt/optix.bin"),
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json": (
            "egl",
            "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        ),
    }


@pytest.mark.parametrize(
    "directory",
    [
        "/usr/lib/xorg/modules",
        "/usr/lib64/xorg/modules",
        "/usr/lib/x86_64-linux-gnu/nvidia/xorg",
        "/usr/X11R6/lib64/modules",
    ],
)
def test_xorg_modules_of_the_loaded_version(host, directory: str) -> None:
    flat = directory.endswith("nvidia/xorg")
    drivers = directory if flat else f"{directory}/drivers"
    extensions = directory if flat else f"{directory}/extensions"
    host.put(f"{drivers}/nvidia_drv.so")
    host.put(f"{extensions}/libglxserver_nvidia.so.550.54.15")
    host.put(f"{extensions}/libglxserver_nvidia.so.535.183.06")
    found = find_xorg_modules(str(host.root), "550.54.15", "x86_64")
    assert [(file.group, file.name) for file in found] == [
        ("xorg", f"{drivers}/nvidia_drv.so"),
        ("xorg", f"{extensions}/libglxserver_nvidia.so.550.54.15"),
    ]
