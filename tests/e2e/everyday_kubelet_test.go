package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/registry"
)

// TestEveryday_22: edgecore.yaml has the settings that a kubelet takes by flags alone. Drop-in
// files override its configuration, and the image of a registry that demands a password is pulled
// with the credentials of a credential provider; the pod runs again after a reboot without a link
// and without the registry, and so does one that pulls its image at each start.
func TestEveryday_22_FlagsOfTheKubelet(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	const dir = "/var/lib/kubelet-flags"
	file := func(name string) string { return s.path("edge1", filepath.Join(dir, name)) }
	write := func(name, text string) {
		t.Helper()
		s.Check(os.MkdirAll(filepath.Dir(file(name)), 0o755))
		s.Check(os.WriteFile(file(name), []byte(text), 0o600))
	}
	const head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
	write("conf.d/20-site.conf", head+"maxPods: 38\n")
	write("conf.d/10-vendor.conf", head+"maxPods: 37\npodPidsLimit: 1234\n")
	write("credentials.yaml", `apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: credentials
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: ["`+registry.Address+`"]
  defaultCacheDuration: 0s
  env: [{name: REGISTRY_USER, value: pod}, {name: REGISTRY_PASSWORD, value: open sesame}]
`)
	s.Check(os.MkdirAll(file("bin"), 0o755))
	s.Check(binary.BuildStatic(t.Context(), s.Root, file("bin/credentials"), "./tests/cmd/credentials"))
	r := s.newRegistry("./tests/images/devices")
	r.Password = "open sesame"
	s.serve("edge1", r)

	pods := func(want string) {
		t.Helper()
		s.WaitFor("the Node to have room for "+want+" pods", func(ctx context.Context) error {
			node, err := s.Client.CoreV1().Nodes().Get(ctx, "edge1", metav1.GetOptions{})
			if err == nil && node.Status.Capacity.Pods().String() != want {
				err = fmt.Errorf("for %s", node.Status.Capacity.Pods())
			}
			return err
		})
	}
	t.Cleanup(func() {
		if err := s.Trial.Set(context.WithoutCancel(t.Context()), "edge1", []string{"modules.edged.kubeletConfigDir=", "modules.edged.imageCredentialProviderConfig=", "modules.edged.imageCredentialProviderBinDir="}); err != nil {
			t.Error(err)
		}
		_ = os.RemoveAll(file(""))
	})
	s.Check(s.Trial.Set(t.Context(), "edge1", []string{
		"modules.edged.kubeletConfigDir=" + dir + "/conf.d",
		"modules.edged.imageCredentialProviderConfig=" + dir + "/credentials.yaml", "modules.edged.imageCredentialProviderBinDir=" + dir + "/bin",
	}))
	pods("38")

	for _, policy := range []string{"IfNotPresent", "Always"} {
		s.Apply(ns, `
apiVersion: v1
kind: Pod
metadata: {name: `+strings.ToLower(policy)+`, labels: {app: private}}
spec:
  nodeName: edge1
  tolerations: [{operator: Exists}]
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: "`+registry.Address+`/private/devices:1", imagePullPolicy: `+policy+`, args: [wait]}]
`)
	}
	private := s.WaitPods(ns, "app=private", "edge1", 2)
	if _, pulled, denied := r.Counts(); pulled == 0 || denied == 0 {
		t.Errorf("the registry sent %d blobs and denied %d requests; want both: it demands a password", pulled, denied)
	}
	s.Reboot("edge1", true) // the registry goes with it
	for _, p := range private {
		s.waitRunsAgain("edge1", p)
	}
	s.Heal("edge1")
	s.WaitReady("edge1", true)
}
