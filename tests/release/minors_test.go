package release_test

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/suite"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// kubernetes are the programs of a minor release of Kubernetes, as suffixes of those in bin.
var kubernetes = map[string]string{"1.36": "-1.36", "1.37": ""}

// TestShip_21_EdgesOfTwoMinorsAtPlanesOfTwoMinors: devices with kubelets of Kubernetes 1.36 and
// 1.37, at control planes of 1.36 and 1.37, each real: a device works where its kubelet is no newer
// than kube-apiserver, its containers keep running when it is upgraded from one minor to the next,
// and where its kubelet is newer it is refused.
func TestShip_21_EdgesOfTwoMinorsAtPlanesOfTwoMinors(t *testing.T) {
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := binary.Build(t.Context(), root, "cloudcore", "trial", "kubeplane", "edgecore", "kubeplane-1.36", "edgecore-1.36"); err != nil {
		t.Fatal(err)
	}
	for plane, edges := range map[string][]string{"1.36": {"1.36"}, "1.37": {"1.36", "1.37"}} {
		t.Run("plane "+plane, func(t *testing.T) {
			program := func(name, minor string) string { return filepath.Join(root, "bin", name+kubernetes[minor]) }
			edgecore := filepath.Join(t.TempDir(), "edgecore")
			replace(t, edgecore, program("edgecore", edges[0]))
			s := skewed{suite.Make(t, "minors", trial.Options{
				Edges: 1, Link: "auto", Sample: true, Paths: map[string]string{"kubeplane": program("kubeplane", plane), "edgecore": edgecore},
			}), edgecore}
			if v, err := s.Client.Discovery().ServerVersion(); err != nil || !strings.HasPrefix(v.GitVersion, "v"+plane+".") {
				t.Fatalf("kube-apiserver says %v, %v", v, err)
			}
			for i, minor := range edges {
				if i > 0 {
					s.upgrade("edge1", program("edgecore", minor))
				}
				s.kubelet("edge1", minor)
				s.linked("edge1", programVersion(t, program("cloudcore", "1.37")))
				s.works("edge-"+strings.ReplaceAll(minor, ".", "-"), "edge1")
			}
			if plane == "1.36" {
				s.refused(program("edgecore", "1.37"))
			}
		})
	}
}

// install.sh takes the edgecore that is asked for: by default today's Kubernetes, with --kubernetes
// the one before, which stays then, and a version that no release has is refused.
func TestInstallOlderKubernetes(t *testing.T) {
	dir := shared(t)
	to := filepath.Join(t.TempDir(), "root")
	for _, step := range []struct {
		minor string
		flags []string
	}{{"1.37", nil}, {minorBefore, []string{"--kubernetes", minorBefore}}, {minorBefore, nil}, {"1.37", []string{"--kubernetes", "1.37"}}, {"1.37", nil}} {
		command(t, "/", nil, "sh", append([]string{filepath.Join(dir, "install.sh"), "--root", to}, append(step.flags, dir)...)...)
		if v := command(t, "/", nil, filepath.Join(to, "usr/bin/edgecore"), "version"); !strings.Contains(v, "(Kubernetes v"+step.minor+".") {
			t.Errorf("install.sh %v installs %s", step.flags, v)
		}
	}
	to = filepath.Join(t.TempDir(), "root")
	_, err := try(t.Context(), "/", nil, "sh", filepath.Join(dir, "install.sh"), "--root", to, "--kubernetes", "1.35", dir)
	if err == nil || !strings.Contains(err.Error(), "this release has no edgecore for "+runtime.GOARCH+" with Kubernetes 1.35") || exists(to) {
		t.Errorf("Kubernetes 1.35, which the release has not: %v", err)
	}
}

// upgrade gives a device another edgecore; its containers keep running.
func (s skewed) upgrade(node, program string) {
	s.T.Helper()
	before := s.Containers(node)
	s.Check(s.Trial.Stop(s.T.Context(), node, "edgecore"))
	replace(s.T, s.edgecore, program)
	s.Start(node, "edgecore")
	s.WaitReady(node, true)
	after := s.Containers(node)
	for _, id := range before {
		if !slices.Contains(after, id) {
			s.T.Errorf("container %s has ended by the upgrade", id)
		}
	}
}

// kubelet waits until the cluster shows the minor release of a device's kubelet.
func (s skewed) kubelet(node, minor string) {
	s.T.Helper()
	s.WaitFor("the kubelet of "+node+" to be of "+minor, func(ctx context.Context) error {
		n, err := s.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err == nil && !strings.HasPrefix(n.Status.NodeInfo.KubeletVersion, "v"+minor+".") {
			err = fmt.Errorf("it is %s", n.Status.NodeInfo.KubeletVersion)
		}
		return err
	})
}

// refused shows that a device with this program does not join, and is told the version to install.
func (s skewed) refused(edgecore string) {
	s.T.Helper()
	token := strings.TrimSpace(command(s.T, "/", nil, filepath.Join(s.Root, "bin", "cloudcore"), "token", "create", "--kubeconfig", s.Trial.Kubeconfig()))
	var out strings.Builder
	code, err := s.Trial.Exec(s.T.Context(), "edge1", trial.Streams{Out: &out, Err: &out}, nil, "sh", "-c",
		"sed 's,^kind: .*,&\\ndataDir: /var/lib/newer,' /etc/skerry/edgecore.yaml >/etc/skerry/newer.yaml && exec "+edgecore+
			" join --config /etc/skerry/newer.yaml --token "+token+" --node-name newer 198.51.100.10")
	s.Check(err)
	if code != 2 || !strings.Contains(out.String(), "install a package skerry-edgecore with Kubernetes 1.33 to 1.36") {
		s.T.Errorf("exit code %d, said:\n%s", code, out.String())
	}
}
