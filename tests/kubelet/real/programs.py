"""The Go programs that these tests run."""

from collections.abc import Callable
from pathlib import Path

from tests.runtime import go

MODULE = Path(__file__).with_name("kubernetes")
OPTIONS = ("-trimpath", "-ldflags=-s -w")


def kubelet(require: Callable[[bool, str], None]) -> Path:
    """Return the kubelet: four minutes to build on two cores, once."""
    return go.build(require, MODULE, "k8s.io/kubernetes/cmd/kubelet", *OPTIONS)


def manifest_checker(require: Callable[[bool, str], None]) -> Path:
    """Return what renders a kustomization and checks each object as an API server does."""
    return go.build(require, MODULE, "./manifests", *OPTIONS)
