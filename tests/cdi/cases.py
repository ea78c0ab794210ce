"""CDI specs of our own, right and wrong, with the places where something is wrong.

Each rule of the Go library has one here; both validators have to agree on every one of them.
"""

from pathlib import Path

DATA = Path(__file__).parents[1] / "data/cdi"

# Samples of public repositories and documents: the places where something is wrong.
SAMPLES = {
    "amd-0.6.0-quoted_kind_comment.yaml": [],
    "amd-0.6.0.json": [],
    "amd-1.1.0-version_unknown.json": [],  # was unknown to the library when it was collected
    "bad-containerPath_called_path.yaml": [
        "devices[0].containerEdits.mounts[0].path",
        "devices[0].containerEdits.mounts[0].containerPath",
    ],
    "ctk-0.6.0-minimal_all.yaml": ["devices[0].containerEdits"],
    "dra_claim-metadata-0.5.0.json": [],
    "jetson-talos-0.5.0.yaml": [],
    "moby-0.6.0-empty_device_edits.yaml": ["devices[0].containerEdits"],
    "nixos-0.5.0-static.json": [],
    "nixos-test-0.5.0-urandom.json": [],
    "nvidia-0.5.0-dra_claim_mig_h200.yaml": [],
    "nvidia-0.8.0-dynamic_mig.yaml": [],
    "rdma-0.5.0-ib_all.json": [],
}

Document = dict[str, object]
ENV = {"env": ["A=b"]}


def spec(
    edits: object = ENV,
    version: object = "1.1.0",
    kind: object = "vendor.com/class",
    name: object = "a",
    **more: object,
) -> Document:
    """Return a spec of one device with these edits."""
    device = {"name": name, "containerEdits": edits}
    return {"cdiVersion": version, "kind": kind, "devices": [device], **more}


def node(**fields: object) -> Document:
    return spec({"deviceNodes": [{"path": "/dev/a", **fields}]})


def hook(**fields: object) -> Document:
    return spec({"hooks": [{"hookName": "prestart", "path": "/bin/a", **fields}]})


def mount(**fields: object) -> Document:
    return spec({"mounts": [{"hostPath": "/a", "containerPath": "/b", **fields}]})


def rdt(**fields: object) -> Document:
    return spec({"intelRdt": fields})


def nets(*devices: object) -> Document:
    return spec({"netDevices": list(devices)})


def without(document: Document, key: str) -> Document:
    return {name: value for name, value in document.items() if name != key}


NODE = "devices[0].containerEdits.deviceNodes[0]"
HOOK = "devices[0].containerEdits.hooks[0]"
MOUNT = "devices[0].containerEdits.mounts[0]"
CLOS_ID = "devices[0].containerEdits.intelRdt.closID"
NET = "devices[0].containerEdits.netDevices"
ETH = {"hostInterfaceName": "eth0", "name": "net0"}

# What it is about -> the document, and the places where something is wrong.
DOCUMENTS: dict[str, tuple[object, list[str]]] = {
    "a small one": (spec(version="0.3.0"), []),
    "a leading v": (spec(version="v0.6.0"), []),
    "no version": (without(spec(), "cdiVersion"), ["cdiVersion"]),
    "a newer version": (spec(version="1.2.0"), ["cdiVersion"]),
    "a version older than the first": (spec(version="0.2.0"), ["cdiVersion"]),
    "half a version": (spec(version="1.1"), ["cdiVersion"]),
    "a mount type needs 0.4.0": (mount(type="bind") | {"cdiVersion": "0.3.0"}, ["cdiVersion"]),
    "a mount type has 0.4.0": (mount(type="bind") | {"cdiVersion": "0.4.0"}, []),
    "a digit needs 0.5.0": (spec(name="0", version="0.4.0"), ["cdiVersion"]),
    "a digit has 0.5.0": (spec(name="0", version="0.5.0"), []),
    "hostPath needs 0.5.0": (node(hostPath="/a") | {"cdiVersion": "0.4.0"}, ["cdiVersion"]),
    "hostPath has 0.5.0": (node(hostPath="/a") | {"cdiVersion": "0.5.0"}, []),
    "annotations need 0.6.0": (spec(version="0.5.0", annotations={"a": "b"}), ["cdiVersion"]),
    "annotations have 0.6.0": (spec(version="0.6.0", annotations={"a": "b"}), []),
    "a dotted class needs 0.6.0": (spec(version="0.5.0", kind="v.com/a.b"), ["cdiVersion"]),
    "a dotted class has 0.6.0": (spec(version="0.6.0", kind="v.com/a.b"), []),
    "gids need 0.7.0": (spec({"additionalGids": [5]}, version="0.6.0"), ["cdiVersion"]),
    "gids have 0.7.0": (spec({"additionalGids": [5]}, version="0.7.0"), []),
    "gids of the spec need 0.7.0": (
        spec(version="0.6.0", containerEdits={"additionalGids": [5]}),
        ["cdiVersion"],
    ),
    "intelRdt needs 0.7.0": (rdt(closID="a") | {"cdiVersion": "0.6.0"}, ["cdiVersion"]),
    "intelRdt has 0.7.0": (rdt(closID="a") | {"cdiVersion": "0.7.0"}, []),
    "schemata need 1.1.0": (rdt(schemata=["a"]) | {"cdiVersion": "1.0.0"}, ["cdiVersion"]),
    "monitoring needs 1.1.0": (
        rdt(enableMonitoring=True) | {"cdiVersion": "1.0.0"},
        ["cdiVersion"],
    ),
    "no monitoring needs nothing": (rdt(enableMonitoring=False) | {"cdiVersion": "1.0.0"}, []),
    "netDevices need 1.1.0": (nets(ETH) | {"cdiVersion": "1.0.0"}, ["cdiVersion"]),
    "netDevices have 1.1.0": (nets(ETH), []),
    "an unknown field": (spec(more=1), ["more"]),
    "an unknown field of a device": (
        spec() | {"devices": [{"name": "a", "containerEdits": ENV, "x": 1}]},
        ["devices[0].x"],
    ),
    "an unknown edit": (spec(ENV | {"x": 1}), ["devices[0].containerEdits.x"]),
    "fields in other letters": (spec(ENV | {"Env": []}), ["devices[0].containerEdits.Env"]),
    "an old intelRdt field": (
        rdt(enableCMT=True),
        ["devices[0].containerEdits.intelRdt.enableCMT"],
    ),
    "no object": ([], [""]),
    "no kind": (without(spec(), "kind"), ["kind"]),
    "a kind without class": (spec(kind="vendor.com"), ["kind"]),
    "a kind with an empty class": (spec(kind="vendor.com/"), ["kind"]),
    "a kind with two slashes": (spec(kind="vendor.com/a/b"), ["kind"]),
    "a vendor that starts with a digit": (spec(kind="1vendor/class"), ["kind"]),
    "a vendor that ends with a dot": (spec(kind="vendor./class"), ["kind"]),
    "a vendor with an odd character": (spec(kind="ven+dor/class"), ["kind"]),
    "a vendor and a class that are wrong": (spec(kind="-/-"), ["kind", "kind"]),
    "a class that starts with a digit": (spec(kind="vendor/1"), ["kind"]),
    "a class with a colon": (spec(kind="vendor/a:b"), ["kind"]),
    "names of one letter": (spec(kind="v/c"), []),
    "names with everything inside": (spec(kind="v-a_b.c/c-a_b.c", name="0-a_b.c:d"), []),
    "no device": (spec() | {"devices": []}, ["devices"]),
    "devices left out": (without(spec(), "devices"), ["devices"]),
    "devices of another type": (spec() | {"devices": {}}, ["devices"]),
    "a device that is null": (
        spec() | {"devices": [None]},
        ["devices[0].name", "devices[0].containerEdits"],
    ),
    "a device without a name": (spec(name=""), ["devices[0].name"]),
    "a device name that starts with a dash": (spec(name="-a"), ["devices[0].name"]),
    "a device name that ends with a colon": (spec(name="a:"), ["devices[0].name"]),
    "a device name with a blank": (spec(name="a b"), ["devices[0].name"]),
    "a device name with a letter of another alphabet": (spec(name="aäa"), ["devices[0].name"]),
    "two devices of one name": (
        spec() | {"devices": [{"name": "a", "containerEdits": ENV}] * 2},
        ["devices[1].name"],
    ),
    "a device without edits": (spec({}), ["devices[0].containerEdits"]),
    "a device with edits that are null": (spec(None), ["devices[0].containerEdits"]),
    "a device with empty lists": (spec({"env": [], "mounts": []}), ["devices[0].containerEdits"]),
    "a device with an empty intelRdt": (rdt(), []),
    "edits of the spec that are empty": (spec(containerEdits={}), []),
    "edits of another type": (spec([]), ["devices[0].containerEdits"]),
    "env without =": (spec({"env": ["A"]}), ["devices[0].containerEdits.env[0]"]),
    "env without a name": (spec({"env": ["A=", "=b"]}), ["devices[0].containerEdits.env[1]"]),
    "env of the spec": (spec(containerEdits={"env": [""]}), ["containerEdits.env[0]"]),
    "env as an object": (spec({"env": {"A": "b"}}), ["devices[0].containerEdits.env"]),
    "a node without a path": (node(path=""), [f"{NODE}.path"]),
    "a node that is null": (spec({"deviceNodes": [None]}), [f"{NODE}.path"]),
    "a node of a type that is none": (node(type="d"), [f"{NODE}.type"]),
    "nodes of every type": (spec({"deviceNodes": [{"path": "a", "type": t} for t in "bcup"]}), []),
    "a node with a negative major": (node(major=-1), [f"{NODE}.major"]),
    "a node with a negative minor": (node(major=1, minor=-1), [f"{NODE}.minor"]),
    "a major that is a text": (node(major="x"), [f"{NODE}.major"]),
    "a major that is a fraction": (node(major=1.5), [f"{NODE}.major"]),
    "a major of 20 digits": (node(major=10**19), [f"{NODE}.major"]),
    "a mode that is negative": (node(fileMode=-1), [f"{NODE}.fileMode"]),
    "a uid of 33 bits": (node(uid=1 << 32), [f"{NODE}.uid"]),
    "the largest uid": (node(uid=(1 << 32) - 1, gid=0, fileMode=432), []),
    "permissions": (node(permissions="mwr"), []),
    "permissions of none": (node(permissions="none"), []),
    "permissions that are none": (node(permissions="rx"), [f"{NODE}.permissions"]),
    "a hook without a name": (hook(hookName=""), [f"{HOOK}.hookName"]),
    "a hook with an unknown name": (hook(hookName="poststart2"), [f"{HOOK}.hookName"]),
    "a hook without a path": (hook(path=""), [f"{HOOK}.path"]),
    "a hook with a bad env": (hook(env=["=b"]), [f"{HOOK}.env[0]"]),
    "a hook with everything": (hook(args=["a"], env=["A=b"], timeout=0), []),
    "a hook with a timeout that is a text": (hook(timeout="soon"), [f"{HOOK}.timeout"]),
    "hooks of every name": (
        spec(
            {
                "hooks": [
                    {"hookName": name, "path": "/a"}
                    for name in (
                        "prestart",
                        "createRuntime",
                        "createContainer",
                        "startContainer",
                        "poststart",
                        "poststop",
                    )
                ]
            }
        ),
        [],
    ),
    "a mount without a host path": (mount(hostPath=""), [f"{MOUNT}.hostPath"]),
    "a mount without a container path": (mount(containerPath=""), [f"{MOUNT}.containerPath"]),
    "a mount with options": (mount(options=["ro"]), []),
    "a mount with one option": (mount(options="ro"), [f"{MOUNT}.options"]),
    "a closID with a slash": (rdt(closID="a/b"), [CLOS_ID]),
    "a closID of two dots": (rdt(closID=".."), [CLOS_ID]),
    "a closID with a newline": (rdt(closID="a\nb"), [CLOS_ID]),
    "a closID of 4096 bytes": (
        rdt(closID="a" * 4096),
        [CLOS_ID],
    ),
    "the root closID": (rdt(closID="/"), []),
    "a net device without names": (nets({}), [f"{NET}[0].hostInterfaceName", f"{NET}[0].name"]),
    "two net devices of one host interface": (
        nets(ETH, ETH | {"name": "net1"}),
        [f"{NET}[1].hostInterfaceName"],
    ),
    "two net devices of one name": (
        nets(ETH, ETH | {"hostInterfaceName": "eth1"}),
        [f"{NET}[1].name"],
    ),
    "a gid that is negative": (
        spec({"additionalGids": [0, -1]}),
        ["devices[0].containerEdits.additionalGids[1]"],
    ),
    "annotations": (spec(annotations={"a.example.com/B_c": "", "x": "y"}), []),
    "an annotation that is a list": (spec(annotations={"a": []}), ["annotations.a"]),
    "many things": (
        spec({"env": ["x"], "mounts": [{}]}, version="9", kind="", name="?"),
        [
            "cdiVersion",
            "kind",
            "devices[0].name",
            "devices[0].containerEdits.env[0]",
            f"{MOUNT}.hostPath",
            f"{MOUNT}.containerPath",
        ],
    ),
    # ---- only nvhook refuses these: see GO_ACCEPTS
    "an annotation key with a blank": (spec(annotations={"a b": "c"}), ["annotations.a b"]),
    "an annotation key of two slashes": (spec(annotations={"a/b/c": "d"}), ["annotations.a/b/c"]),
    "an annotation key without a name": (spec(annotations={"a/": "d"}), ["annotations.a/"]),
    "an annotation name of 64 letters": (
        spec(annotations={"a" * 64: "b"}),
        ["annotations." + "a" * 64],
    ),
    "an annotation domain with an underscore": (
        spec(annotations={"a_b/c": "d"}),
        ["annotations.a_b/c"],
    ),
    "annotations of 256 KiB": (spec(annotations={"a": "b" * (256 << 10)}), ["annotations"]),
    "a text with a zero byte": (
        mount(hostPath="/a\0b"),
        [f"{MOUNT}.hostPath", f"{MOUNT}.hostPath"],
    ),
    "true for a text": (spec(name=True), ["devices[0].name"]),
}

# YAML that JSON can't say.
HEAD = "cdiVersion: 0.5.0\nkind: vendor.com/class\n"
DEVICE = "devices:\n- name: 0\n  containerEdits: {env: [A=b]}\n"
YAML: dict[str, tuple[str, list[str]]] = {
    "a name that looks like a number": (HEAD + DEVICE, []),
    "a name that looks like null": (HEAD + DEVICE.replace("0", "null"), ["devices[0].name"]),
    "a name that looks like a truth": (HEAD + DEVICE.replace("0", "yes"), []),
    "a major in quotes": (
        HEAD + 'devices:\n- name: a\n  containerEdits: {deviceNodes: [{path: /a, major: "1"}]}\n',
        [f"{NODE}.major"],
    ),
    "numbers of every base": (
        HEAD
        + "devices:\n- name: a\n  containerEdits:\n    deviceNodes:\n"
        + "    - {path: /a, type: c, major: 0x10, minor: 0o17, fileMode: 0660}\n",
        [],
    ),
    "an alias": (
        HEAD + "containerEdits: &e {env: [A=b]}\ndevices:\n- {name: a, containerEdits: *e}\n",
        [],
    ),
    "sections without content": (HEAD + "containerEdits:\n" + DEVICE, []),
    "a comment and a document mark": ("# made by hand\n---\n" + HEAD + DEVICE, []),
    "a duplicate key": (HEAD + HEAD + DEVICE, [""]),
    "an alias of nothing": (HEAD + DEVICE + "containerEdits: *nothing\n", [""]),
    "an alias of itself": (HEAD + DEVICE + "containerEdits: &e {env: *e}\n", [""]),
    "a tab for a blank": (HEAD + "devices:\n\t- name: a\n", [""]),
    "a list that does not end": (HEAD + "devices: [", [""]),
    "a tag": (HEAD + DEVICE + "containerEdits: !thing {}\n", [""]),
    "nothing but a comment": ("# nothing\n", [""]),
    "a list": ("- a\n", [""]),
    # ---- only nvhook refuses these: see GO_ACCEPTS
    "a second document": (HEAD + DEVICE + "---\n" + HEAD + DEVICE, [""]),
    "a merge key": (HEAD + DEVICE + "containerEdits: {<<: {env: [A=b]}}\n", [""]),
}

# Where the official library says yes and nvhook no.
GO_ACCEPTS = {
    # the library has the rule for keys and sizes and, as of 1.1.2, never comes to it
    "an annotation key with a blank",
    "an annotation key of two slashes",
    "an annotation key without a name",
    "an annotation name of 64 letters",
    "an annotation domain with an underscore",
    "annotations of 256 KiB",
    # no system call takes one: the container would fail to start
    "a text with a zero byte",
    # the library takes what was written as the text
    "true for a text",
    # the library cuts the fraction off
    "a major that is a fraction",
    # the library reads the first document and does not see the others
    "a second document",
    # nobody needs them, and they hide what a spec says
    "a merge key",
    "a tag",
}
