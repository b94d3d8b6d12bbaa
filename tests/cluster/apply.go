package cluster

import (
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/manifest"
)

// Apply applies a kustomize directory of the repository, such as "manifests/cloudcore", as the
// administrator. It may be repeated.
func (c *ControlPlane) Apply(t testing.TB, dir string) {
	t.Helper()
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	objects, err := manifest.Build(filepath.Join(root, dir))
	if err != nil {
		t.Fatal(err)
	}
	c.ApplyObjects(t, objects...)
}

// ApplyObjects applies objects by server-side apply, as the administrator.
func (c *ControlPlane) ApplyObjects(t testing.TB, objects ...*unstructured.Unstructured) {
	t.Helper()
	if err := manifest.Apply(t.Context(), c.Admin(), objects...); err != nil {
		t.Fatal(err)
	}
}
