package e2e_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// cloudcore runs a command of cloudcore as the administrator.
func (s *system) cloudcore(args ...string) string {
	s.T.Helper()
	cmd := exec.CommandContext(s.T.Context(), filepath.Join(s.Root, "bin", "cloudcore"), append(args, "--kubeconfig", s.Trial.Kubeconfig())...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		s.T.Fatalf("cloudcore %v: %v: %s", args, err, errs.String())
	}
	return strings.TrimSpace(string(out))
}

// rejoin makes a device forget its cluster and join it again, with another configuration, and
// returns the token that it did so with. Its Node is another one and in no pool: it is put into the
// trial's as soon as it is there. Pods that got addresses of a range that the device takes itself
// would not be reached from the other device.
func (s *system) rejoin(node string, config []byte) (token string) {
	s.T.Helper()
	const file = "/etc/skerry/edgecore.yaml"
	s.Kill(node, "edgecore")
	s.onHost(node, s.Root+"/bin/edgecore", "reset", "--config", file, "--yes")
	s.cloudcore("node", "revoke", node)
	s.Check(os.WriteFile(s.path(node, file), config, 0o640))
	token = s.cloudcore("token", "create", "--ttl", "10m")
	s.Check(os.WriteFile(s.path(node, "/run/join-token"), []byte(token+"\n"), 0o600))
	s.onHost(node, s.Root+"/bin/edgecore", "join", "--config", file, "--token-file", "/run/join-token", "--node-name", node, lab.Cloud().String())
	s.onHost(node, "rm", "/run/join-token")
	s.Start(node, "edgecore")
	s.WaitFor(node+" to be in the pool", func(ctx context.Context) error {
		_, err := s.Run(ctx, "kubectl", "label", "node", node, v1alpha1.NodePoolLabel+"="+trial.Pool, "--overwrite")
		return err
	})
	s.WaitReady(node, true)
	s.WaitFor(node+" to have a range, and its pods addresses of it", func(ctx context.Context) error {
		n, err := s.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		of, err := netip.ParsePrefix(n.Spec.PodCIDR)
		if err != nil {
			return err
		}
		pods, err := s.Client.CoreV1().Pods("sample").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
		if err != nil {
			return err
		}
		for _, p := range pods.Items {
			if at, err := netip.ParseAddr(p.Status.PodIP); err != nil || !of.Contains(at) {
				return fmt.Errorf("%s is at %q, the range is %s", p.Name, p.Status.PodIP, of)
			}
		}
		return nil
	})
	s.WaitPods("sample", "app=sample", node, 1)
	return token
}

// pemKey is a private key in PEM: the words alone are in every program that can read one.
var pemKey = regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/=]{40}`)

// onDisk are the files of a host's disk that hold a private key, or any of some strings. The disk
// is the host's directory on this machine: the host's own mounts over it, and everything in memory,
// is not there.
func (s *system) onDisk(node string, wanted map[string]string) (found []string, files int) {
	s.T.Helper()
	dir := filepath.Join(s.Dir, "hosts", node)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // containerd of a host that runs removes snapshots
			return nil
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		files++
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		for name, text := range wanted {
			// As it is, and as Kubernetes' JSON and a kubeconfig have it.
			if bytes.Contains(content, []byte(text)) || bytes.Contains(content, []byte(base64.StdEncoding.EncodeToString([]byte(text)))) {
				found = append(found, name+" in "+strings.TrimPrefix(path, dir))
			}
		}
		if pemKey.Match(content) {
			found = append(found, "a private key in "+strings.TrimPrefix(path, dir))
		}
		for _, encoded := range regexp.MustCompile(`LS0tLS1CRUdJTi[A-Za-z0-9+/=]{100,}`).FindAll(content, -1) { // base64 of -----BEGIN
			if raw, err := base64.StdEncoding.DecodeString(string(encoded)); err == nil && pemKey.Match(raw) {
				found = append(found, "a private key, in base64, in "+strings.TrimPrefix(path, dir))
			}
		}
		return err
	})
	s.Check(err)
	return found, files
}

// TestHostile_13_StolenDiskShowsNoSecret: a device whose key is not on its disk runs pods with
// Secrets and tokens, serves `kubectl logs`, reboots offline, and loses its power. Its disk shows
// no token, no Secret and no private key. Other data is found there, and a device as it is by
// default shows keys: the search works.
func TestHostile_13_StolenDiskShowsNoSecret(t *testing.T) {
	s := newSystem(t)
	const node = "edge2"
	plain, err := os.ReadFile(s.path(node, "/etc/skerry/edgecore.yaml"))
	s.Check(err)
	if found, _ := s.onDisk(node, nil); len(found) == 0 {
		t.Error("no key is found on the disk of a device as it is by default")
	}

	// It stands for a TPM, or a server of keys: it is not on the device's disk.
	vault := filepath.Join(t.TempDir(), "key")
	const diskKey = "5c1f0a7be2d94c1e8a6b3f7d90e2145ac07f3b8e6d5a49128fe0b7c3d6a19e44"
	s.Check(os.WriteFile(vault, []byte(diskKey+"\n"), 0o600))
	sealed := strings.Replace(string(plain), "modules:\n", fmt.Sprintf("modules:\n  metaManager:\n    encryption:\n      keyCommand: cat %s\n", vault), 1)
	if sealed == string(plain) {
		t.Fatalf("edgecore.yaml has no modules:\n%s", plain)
	}
	defer func() { // not a Cleanup, which comes when the test's context has ended
		// Not Mend: it would start edgecore with its plain file, which can't read the identity.
		s.Heal(node)
		s.rejoin(node, plain)
	}()
	joinToken := s.rejoin(node, []byte(sealed))

	ns := s.Namespace()
	s.Apply(ns, "apiVersion: v1\nkind: Secret\nmetadata: {name: shared}\nstringData: {k: secret-of-the-pod-4711}\n---\n"+
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: shared}\ndata: {k: setting-of-the-pod-4711}\n---\n"+
		samplePod("keeper", node)+"    volumeMounts: [{name: config, mountPath: /config}, {name: secret, mountPath: /secret}]\n"+
		"  volumes: [{name: config, configMap: {name: shared}}, {name: secret, secret: {secretName: shared}}]\n")
	pod := s.WaitPods(ns, "app=keeper", node, 1)[0]
	holds := func(ctx context.Context) error {
		pods, err := s.Client.CoreV1().Pods(ns).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		page, err := s.Page(ctx, *pods)
		if err == nil && !strings.Contains(page, "secret k = secret-of-the-pod-4711") {
			err = fmt.Errorf("its page is %s", page)
		}
		return err
	}
	s.WaitFor("the pod to have its Secret", holds)
	s.WaitFor("the pod's log, by the kubelet's server", func(ctx context.Context) error {
		_, err := s.Run(ctx, "kubectl", "-n", ns, "logs", pod.Name)
		return err
	})
	podToken := strings.TrimSpace(s.onHost(node, "sh", "-c", "cat /var/lib/kubelet/pods/"+string(pod.UID)+"/volumes/kubernetes.io~projected/*/token"))
	_, signature, ok := strings.Cut(podToken[strings.Index(podToken, ".")+1:], ".")
	if !ok {
		t.Fatalf("the pod's token is %q", podToken)
	}
	secret, _, _ := strings.Cut(joinToken[strings.Index(joinToken, ".")+1:], "@")
	metrics := strings.TrimSpace(s.onHost(node, "cat", "/run/skerry/keys/metrics.token"))
	kubelet := s.onHost(node, "sh", "-c", "cat /run/skerry/keys/kubelet/*.pem")
	if !pemKey.MatchString(kubelet) {
		t.Errorf("the kubelet's server has no key in memory: %q", kubelet)
	}
	secrets := map[string]string{
		"the Secret": "secret-of-the-pod-4711", "the join token": secret, "the pod's token": signature, "the device's key": diskKey, "the token for metrics": metrics,
	}
	look := func(when string) {
		t.Helper()
		found, files := s.onDisk(node, secrets)
		if len(found) > 0 {
			t.Errorf("%s the disk shows %v", when, found)
		}
		if found, _ := s.onDisk(node, map[string]string{"the ConfigMap": "setting-of-the-pod-4711"}); len(found) == 0 {
			t.Errorf("%s the disk does not show the ConfigMap either: nothing can be found in its %d files", when, files)
		}
	}
	look("at work")
	s.Reboot(node, true)
	s.WaitFor("the pod to have its Secret again, offline", func(ctx context.Context) error {
		out, err := s.TryEdgeKubectl(ctx, node, "--kubeconfig", "/run/skerry/keys/edge.kubeconfig", "get", "secret", "-n", ns, "shared", "-o", "jsonpath={.data.k}")
		if err == nil && out != base64.StdEncoding.EncodeToString([]byte("secret-of-the-pod-4711")) {
			err = fmt.Errorf("it is %q", out)
		}
		return err
	})
	look("after a boot offline")
	s.Heal(node)
	s.WaitReady(node, true)
	s.WaitFor("the pod to have its Secret", holds)
	s.Check(s.Trial.PowerOff(t.Context(), node))
	look("without power")
	s.Reboot(node, false)
	s.WaitReady(node, true)
}
