package check_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/skerry-io/skerry/cloud/internal/trust/check"
)

// The APIs of a cluster of Kubernetes 1.35: its policies that mutate are a beta. A real cluster is
// tested in tests/integration/join.
func TestRunOldCluster(t *testing.T) {
	client := fake.NewClientset()
	discovery := client.Discovery().(*fakediscovery.FakeDiscovery)
	discovery.FakedServerVersion = &version.Info{GitVersion: "v1.35.4"}
	discovery.Resources = []*metav1.APIResourceList{
		{GroupVersion: "admissionregistration.k8s.io/v1", APIResources: []metav1.APIResource{{Name: "validatingadmissionpolicies"}}},
		{GroupVersion: "apiextensions.k8s.io/v1", APIResources: []metav1.APIResource{{Name: "customresourcedefinitions"}}},
		{GroupVersion: "certificates.k8s.io/v1", APIResources: []metav1.APIResource{{Name: "certificatesigningrequests"}}},
		{GroupVersion: "coordination.k8s.io/v1", APIResources: []metav1.APIResource{{Name: "leases"}}},
		{GroupVersion: "authorization.k8s.io/v1", APIResources: []metav1.APIResource{{Name: "subjectaccessreviews"}}},
	}
	says := map[string]string{"kubernetes": "v1.35.4", "served APIs": "not served: mutatingadmissionpolicies of admissionregistration.k8s.io/v1"}
	for _, f := range check.Run(t.Context(), client) {
		if want, ok := says[f.Name]; ok {
			delete(says, f.Name)
			if f.Level != check.Fail || !strings.Contains(f.Message, want) || f.Mend == "" {
				t.Errorf("%+v, want a failure with %q", f, want)
			}
		}
	}
	if len(says) > 0 {
		t.Errorf("not asked: %v", says)
	}
}
