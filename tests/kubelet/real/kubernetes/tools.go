//go:build tools

// Package tools names what the tests build: the kubelet.
package tools

import _ "k8s.io/kubernetes/cmd/kubelet"
