package version_test

import (
	"strings"
	"testing"

	"github.com/skerry-io/skerry/common/version"
)

func TestKubeletFits(t *testing.T) {
	for _, test := range []struct{ kubelet, apiserver, refused string }{
		{"v1.37.1", "v1.37.4", ""},
		{"v1.37.9", "v1.37.0", ""}, // patches don't count
		{"v1.36.4", "v1.37.1", ""},
		{"v1.34.0", "v1.37.1-eks-1", ""},
		{"v1.37.1", "v1.36.4", "skerry-edgecore with Kubernetes 1.33 to 1.36"},
		{"v1.33.0", "v1.37.1", "skerry-edgecore with Kubernetes 1.34 to 1.37"},
		{"v1.37.1", "v1.36.0+k3s1", "newer than"},
		{"v2.0.0", "v1.37.0", "newer than"},
		{"v1.37.1", "", ""}, // not known
		{"unknown", "v1.37.1", ""},
		{"v0.0.0-master+$Format:%H$", "v1.37.1", ""}, // of a build without a version
		{"v1.37.1", "v0.0.0-master+$Format:%H$", ""},
	} {
		err := version.KubeletFits(test.kubelet, test.apiserver)
		switch {
		case test.refused == "" && err != nil:
			t.Errorf("kubelet %s, kube-apiserver %s: %v", test.kubelet, test.apiserver, err)
		case test.refused != "" && (err == nil || !strings.Contains(err.Error(), test.refused)):
			t.Errorf("kubelet %s, kube-apiserver %s: want %q, got %v", test.kubelet, test.apiserver, test.refused, err)
		}
	}
}
