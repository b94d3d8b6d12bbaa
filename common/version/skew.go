package version

import (
	"fmt"

	utilversion "k8s.io/apimachinery/pkg/util/version"
)

// oldestKubelet is how many minor versions a kubelet may be behind kube-apiserver.
const oldestKubelet = 3

// KubeletFits reports why a kubelet must not be used with a kube-apiserver, each by its version
// ("v1.37.1"); nil where it may, and where one of the two is no version, or v0.0.0-master, of a
// build without one. A kubelet is never newer than kube-apiserver, and at most three minor versions
// older (https://kubernetes.io/releases/version-skew-policy/#kubelet). The error names the version
// to install.
func KubeletFits(kubelet, apiserver string) error {
	k, err := utilversion.ParseGeneric(kubelet)
	if err != nil {
		return nil
	}
	a, err := utilversion.ParseGeneric(apiserver)
	if err != nil {
		return nil
	}
	if k.Major() == 0 || a.Major() == 0 {
		return nil // a build to which the linker gave no version: v0.0.0-master
	}
	oldest := uint(0)
	if a.Minor() > oldestKubelet {
		oldest = a.Minor() - oldestKubelet
	}
	if k.Major() == a.Major() && k.Minor() >= oldest && k.Minor() <= a.Minor() {
		return nil
	}
	what := "newer than"
	if k.LessThan(a) {
		what = fmt.Sprintf("more than %d minor versions older than", oldestKubelet)
	}
	return fmt.Errorf("the kubelet in this edgecore is %s, which is %s the cluster's kube-apiserver, %s: install a package skerry-edgecore with Kubernetes %d.%d to %d.%d ('edgecore version' prints it)",
		kubelet, what, apiserver, a.Major(), oldest, a.Major(), a.Minor())
}
