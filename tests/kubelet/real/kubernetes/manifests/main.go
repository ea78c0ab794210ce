// manifests renders a directory's kustomization and prints its objects, a JSON list. On standard
// error is what an API server would say against them: unknown fields, wrong types, bad values.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/apps"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	appsvalidation "k8s.io/kubernetes/pkg/apis/apps/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/node"
	_ "k8s.io/kubernetes/pkg/apis/node/install"
	nodevalidation "k8s.io/kubernetes/pkg/apis/node/validation"
	"k8s.io/kubernetes/pkg/capabilities"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

func validate(object runtime.Object) field.ErrorList {
	switch typed := object.(type) {
	case *apps.DaemonSet:
		return appsvalidation.ValidateDaemonSet(typed, corevalidation.PodValidationOptions{})
	case *core.ConfigMap:
		return corevalidation.ValidateConfigMap(typed)
	case *core.Namespace:
		return corevalidation.ValidateNamespace(typed)
	case *core.Pod:
		return corevalidation.ValidatePodCreate(typed, corevalidation.PodValidationOptions{})
	case *core.ServiceAccount:
		return corevalidation.ValidateServiceAccount(typed)
	case *node.RuntimeClass:
		return nodevalidation.ValidateRuntimeClass(typed)
	}
	return field.ErrorList{field.NotSupported(field.NewPath("kind"), fmt.Sprintf("%T", object), []string{})}
}

func main() {
	rendered, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	capabilities.Initialize(capabilities.Capabilities{AllowPrivileged: true})
	// With the defaults that an API server sets, in its internal types.
	decoder := serializer.NewCodecFactory(legacyscheme.Scheme, serializer.EnableStrict).UniversalDecoder()
	objects, failed := []json.RawMessage{}, false
	for _, resource := range rendered.Resources() {
		text, err := resource.MarshalJSON()
		if err != nil {
			panic(err)
		}
		objects = append(objects, text)
		object, err := runtime.Decode(decoder, text)
		if err == nil {
			err = validate(object).ToAggregate()
		}
		if err != nil {
			failed = true
			fmt.Fprintf(os.Stderr, "%s %s: %v\n", resource.GetKind(), resource.GetName(), err)
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(objects); err != nil || failed {
		os.Exit(1)
	}
}
