package join_test

import (
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/tests/cluster"
)

// TestCheckCluster: a real kube-apiserver is fit for cloudcore; a DaemonSet that would run on
// devices is found, and the printed patch, applied, keeps it away; a user that may not install is
// told so.
func TestCheckCluster(t *testing.T) {
	plane := cluster.Shared(t)
	s := newSystem(t)
	check := func(kubeconfig string) (map[string]finding, int) {
		t.Helper()
		out, said, code := run(t, s.cloudcore, "check", "--kubeconfig", kubeconfig, "-o", "json")
		if !strings.HasPrefix(out, "[") {
			t.Fatal(out, said)
		}
		return findings(t, out), code
	}
	found, code := check(plane.Kubeconfig)
	if code != 0 || len(found) < 4 {
		t.Errorf("exit code %d: %+v", code, found)
	}
	for name, f := range found {
		if f.Level != "fine" {
			t.Errorf("%s: %+v", name, f)
		}
	}

	ns := plane.Namespace(t)
	add := func(name string, terms ...corev1.NodeSelectorTerm) {
		t.Helper()
		labels := map[string]string{"app": name}
		d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none:1"}}}},
		}}
		if len(terms) > 0 {
			d.Spec.Template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms},
			}}
		}
		if _, err := plane.Client().AppsV1().DaemonSets(ns).Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	term := func(key string, operator corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: operator, Values: values}}}
	}
	const edge = "node-role.kubernetes.io/edge"
	add("everywhere")
	add("linux", term("kubernetes.io/os", corev1.NodeSelectorOpIn, "linux"), term("kubernetes.io/arch", corev1.NodeSelectorOpIn, "amd64"))
	add("in-the-cloud", term(edge, corev1.NodeSelectorOpDoesNotExist))
	add("on-devices", term(edge, corev1.NodeSelectorOpExists))
	found, code = check(plane.Kubeconfig)
	if code != 0 || len(found) != 3+2 {
		t.Errorf("exit code %d: %+v", code, found)
	}
	for _, name := range []string{"everywhere", "linux"} {
		f := found["DaemonSet "+ns+"/"+name]
		_, patch, ok := strings.Cut(f.Mend, " --type merge -p '")
		if f.Level != "warn" || !ok || !strings.Contains(f.Mend, "kubectl -n "+ns+" patch daemonset "+name) {
			t.Fatalf("%s: %+v", name, f)
		}
		if _, err := plane.Client().AppsV1().DaemonSets(ns).Patch(t.Context(), name, types.MergePatchType, []byte(strings.TrimSuffix(patch, "'")), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if found, _ = check(plane.Kubeconfig); found["DaemonSets"].Level != "fine" {
		t.Errorf("after the patches: %+v", found)
	}

	weak := filepath.Join(t.TempDir(), "weak.kubeconfig")
	plane.AccountKubeconfig(t, "cloudcore", weak)
	if found, code = check(weak); code != 1 || found["rights"].Level != "fail" || !strings.Contains(found["rights"].Message, "escalate clusterroles") {
		t.Errorf("cloudcore's own account: exit code %d, %+v", code, found["rights"])
	}
}
