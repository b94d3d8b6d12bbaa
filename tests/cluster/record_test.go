package cluster_test

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/manifest"
)

// A trial applies its manifests before each test: only what the test before changed is sent.
func TestRecordAppliesWhatChanged(t *testing.T) {
	c := cluster.Run(t)
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var patched []string
	cfg := rest.CopyConfig(c.Admin())
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPatch {
				mu.Lock()
				patched = append(patched, filepath.Base(r.URL.Path))
				mu.Unlock()
			}
			return next.RoundTrip(r)
		})
	})
	record := manifest.Record{File: filepath.Join(t.TempDir(), "applied.json"), Inputs: "1"}
	apply := func() []string {
		t.Helper()
		patched = nil
		err := record.Apply(t.Context(), cfg, func() (all []*unstructured.Unstructured, err error) {
			for _, dir := range []string{"manifests/crds", "manifests/cloudcore", "manifests/autonomy"} {
				objects, err := manifest.Build(filepath.Join(root, dir))
				if err != nil {
					return nil, err
				}
				all = append(all, objects...)
			}
			return all, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(patched)
		return patched
	}
	all := len(apply())
	// A controller completes the aggregated ClusterRole once more.
	cluster.Eventually(t, "unchanged objects to stay as they are", func(context.Context) error {
		if got := apply(); len(got) != 0 {
			return fmt.Errorf("of %d objects %d were applied again: %v", all, len(got), got)
		}
		return nil
	})
	ctx, client := t.Context(), c.Client()
	check := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(nil, client.RbacV1().ClusterRoleBindings().Delete(ctx, "skerry:cloudcore-apps", metav1.DeleteOptions{}))
	const fails = `{"spec":{"failurePolicy":"Ignore"}}`
	policies, err := client.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(ctx, metav1.ListOptions{})
	check(nil, err)
	policy := policies.Items[0].Name
	check(client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Patch(ctx, policy, "application/merge-patch+json", []byte(fails), metav1.PatchOptions{}))
	const label = `{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":null}}}`
	check(client.CoreV1().Namespaces().Patch(ctx, "skerry-system", "application/merge-patch+json", []byte(label), metav1.PatchOptions{}))
	want := []string{policy, "skerry:cloudcore-apps", "skerry-system"}
	slices.Sort(want)
	if got := apply(); !slices.Equal(got, want) {
		t.Errorf("applied %v, want the changed %v", got, want)
	}
	if p, err := client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(ctx, policy, metav1.GetOptions{}); err != nil || *p.Spec.FailurePolicy != "Fail" {
		t.Errorf("the policy is as a test left it: %v", err)
	}
	if got := apply(); len(got) != 0 {
		t.Errorf("after that %v were applied again", got)
	}
	if record.Inputs = "2"; len(apply()) != all {
		t.Errorf("of other inputs %d objects were applied, want %d", len(patched), all)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
