package e2e_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// An operation that only a newer release of cloudcore knows is refused by its name, and holds up no
// other.
func TestFleet_03_OperationOfANewerReleaseIsRefused(t *testing.T) {
	s := newSystem(t).fleet()
	const operations = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/operation/enum/"
	change := func(ctx context.Context, patch string) {
		t.Helper()
		s.Must(s.Run(ctx, "kubectl", "patch", "crd", "nodeoperations.skerry.io", "--type=json", "-p", patch))
	}
	change(t.Context(), `[{"op": "add", "path": "`+operations+`0", "value": "Levitate"}]`)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		s.Must(s.Run(ctx, "kubectl", "delete", "nodeoperations", "--all"))
		change(ctx, `[{"op": "test", "path": "`+operations+`0", "value": "Levitate"}, {"op": "remove", "path": "`+operations+`0"}]`)
	})
	s.WaitFor("the new schema", func(ctx context.Context) error {
		out, err := s.Run(ctx, "kubectl", "create", "-f", s.file(nodeOperation("levitate", "edge1", "Levitate", "")))
		if err != nil {
			return errors.Join(err, errors.New(out))
		}
		return nil
	})
	if o := s.waitOperation("levitate", "refused", ended); !isDone(v1alpha1.OperationRefused)(o) || !strings.Contains(o.Status.Conditions[0].Message, "Levitate") {
		t.Errorf("%+v", o.Status)
	}
	s.Apply("default", nodeOperation("after", "edge1", "ImagePull", `, imagePull: {images: ["skerry.local/sample:1"]}`))
	if o := s.waitOperation("after", "pulled", ended); !isDone(v1alpha1.OperationPulled)(o) {
		t.Errorf("after it: %+v", o.Status)
	}
}

// file is a file with objects.
func (s *system) file(yaml string) string {
	s.T.Helper()
	path := filepath.Join(s.T.TempDir(), "object.yaml")
	s.Check(os.WriteFile(path, []byte(yaml), 0o600))
	return path
}
