package manifests_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/tests/cluster"
)

// probePolicy denies certificate requests named probe-*: kube-apiserver compiles policies in one
// go, so that ours are in force once it is.
const probePolicy = `
- apiVersion: admissionregistration.k8s.io/v1
  kind: ValidatingAdmissionPolicy
  metadata: {name: zz-probe}
  spec:
    matchConstraints:
      resourceRules: [{apiGroups: [certificates.k8s.io], apiVersions: ["*"], operations: [CREATE], resources: [certificatesigningrequests]}]
    validations: [{expression: "!object.metadata.name.startsWith('probe-')"}]
- apiVersion: admissionregistration.k8s.io/v1
  kind: ValidatingAdmissionPolicyBinding
  metadata: {name: zz-probe}
  spec: {policyName: zz-probe, validationActions: [Deny]}
`

// TestClaims_35_RequestsOfOthersCostNoLiveRead: where the object that a policy refers to does not
// exist, kube-apiserver reads it live for each request that the policy matches, with a limit of a
// second, and refuses the request when that is over. So no certificate request in the cluster may
// cause such a read, in a cluster in which no node was ever revoked.
func TestClaims_35_RequestsOfOthersCostNoLiveRead(t *testing.T) {
	// Not a lent one: where a policy was removed and made again, kube-apiserver (1.37) may continue
	// to read its object live.
	plane := cluster.Own(t)
	plane.Apply(t, "manifests/cloudcore")
	ns := plane.Namespace(t)
	client := plane.Client()
	var probe []map[string]any
	if err := yaml.Unmarshal([]byte(probePolicy), &probe); err != nil {
		t.Fatal(err)
	}
	for _, o := range probe {
		plane.ApplyObjects(t, &unstructured.Unstructured{Object: o})
	}
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	pem, err := pki.NewNodeCSR(key, types.NodeName("somebody"))
	if err != nil {
		t.Fatal(err)
	}
	request := func(ctx context.Context, name string) error {
		_, err := client.CertificatesV1().CertificateSigningRequests().Create(ctx, &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				Request: pem, SignerName: "example.com/anybody", Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
			},
		}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	cluster.Eventually(t, "policies to be in force", func(ctx context.Context) error {
		switch err := request(ctx, "probe-"+ns); {
		case err == nil:
			return errors.New("the probe is not denied yet")
		case apierrors.IsInvalid(err) || apierrors.IsForbidden(err):
			return nil
		default:
			return err
		}
	})
	const requests = 20
	// Where the object exists live reads end once kube-apiserver's own copy is there, moments after
	// the policy is in force.
	cluster.Eventually(t, "requests to cost no live read", func(ctx context.Context) error {
		before := liveReads(t, plane)
		for i := range requests {
			if err := request(ctx, fmt.Sprintf("%s-%d", ns, i)); err != nil {
				return err
			}
		}
		if more := liveReads(t, plane) - before; more >= requests {
			return fmt.Errorf("%d certificate requests made kube-apiserver read %d ConfigMaps live", requests, more)
		}
		return nil
	})
}

// liveReads is how many single ConfigMaps kube-apiserver has read, by its own metrics.
func liveReads(t *testing.T, plane *cluster.ControlPlane) (sum int) {
	t.Helper()
	raw, err := plane.Client().CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(bytes.NewReader(raw)); lines.Scan(); {
		line := lines.Text()
		if !strings.HasPrefix(line, "apiserver_request_total{") || !strings.Contains(line, `resource="configmaps"`) || !strings.Contains(line, `verb="GET"`) {
			continue
		}
		var n float64
		if _, err := fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &n); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		sum += int(n)
	}
	return sum
}
