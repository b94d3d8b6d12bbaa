package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/build/image"
	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/lab"
)

const followerImage = "skerry.local/follower:1"

// follower puts its image on a node.
func (s *system) follower(node string) {
	s.T.Helper()
	program := filepath.Join(s.T.TempDir(), "follower")
	s.Check(binary.BuildStatic(s.T.Context(), s.Root, program, "./tests/images/follower"))
	archive := s.path(node, "/var/lib/follower.tar")
	s.Check(image.WriteFile(archive, followerImage, program))
	s.T.Cleanup(func() { _ = os.Remove(archive) })
	s.onHost(node, "ctr", "--namespace=k8s.io", "images", "import", "/var/lib/follower.tar")
}

// followerPod runs the follower on edge1.
func (s *system) followerPod() (ns, pod string) {
	s.T.Helper()
	s.follower("edge1")
	ns = s.Namespace()
	s.Apply(ns, `
apiVersion: v1
kind: ServiceAccount
metadata: {name: follower}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: follower}
rules:
- {apiGroups: [""], resources: [configmaps], resourceNames: [followed], verbs: [get, list, watch]}
- {apiGroups: [""], resources: [pods], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: follower}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: follower}
subjects: [{kind: ServiceAccount, name: follower}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: followed}
data: {k: one}
---
apiVersion: v1
kind: Pod
metadata: {name: follower, labels: {app: follower, skerry.io/autonomy: "true"}}
spec:
  nodeName: edge1
  serviceAccountName: follower
  terminationGracePeriodSeconds: 0
  volumes:
  - {name: followed, configMap: {name: followed}}
  - {name: state, hostPath: {path: /var/lib/follower-state, type: DirectoryOrCreate}}
  containers:
  - name: app
    image: `+followerImage+`
    imagePullPolicy: Never
    env: [{name: FOLLOW, value: followed}]
    volumeMounts: [{name: followed, mountPath: /followed}, {name: state, mountPath: /state}]
`)
	s.T.Cleanup(func() { _ = os.RemoveAll(s.path("edge1", "/var/lib/follower-state")) })
	return ns, s.WaitPods(ns, "app=follower", "edge1", 1)[0].Name
}

// podLog is the log of the newest container of a pod, read on its node: link or no link.
func (s *system) podLog(node, namespace, pod string) (string, error) {
	files, err := filepath.Glob(s.path(node, fmt.Sprintf("/var/log/pods/%s_%s_*/*/*.log", namespace, pod)))
	if err != nil || len(files) == 0 {
		return "", fmt.Errorf("no log of %s/%s: %w", namespace, pod, err)
	}
	var newest []byte
	for _, f := range files { // 0.log, 1.log: sorted
		if newest, err = os.ReadFile(f); err != nil {
			return "", err
		}
	}
	var out bytes.Buffer
	for line := range bytes.Lines(newest) { // time, stream, flag, text: the CRI's form
		if f := bytes.SplitN(line, []byte(" "), 4); len(f) == 4 {
			out.Write(f[3])
		}
	}
	return out.String(), nil
}

// waitLog waits until the last lines of these topics in a pod's log are these.
func (s *system) waitLog(node, namespace, pod string, want ...string) {
	s.T.Helper()
	s.WaitFor(fmt.Sprintf("%s to say %q", pod, want), func(context.Context) error {
		text, err := s.podLog(node, namespace, pod)
		if err != nil {
			return err
		}
		last := map[string]string{}
		for line := range strings.Lines(text) {
			topic, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			last[topic] = rest
		}
		for _, w := range want {
			topic, rest, _ := strings.Cut(w, " ")
			if have, ok := last[topic]; !ok || have != rest {
				return fmt.Errorf("it says:\n%s", text)
			}
		}
		return nil
	})
}

// TestIsland_Rule6_PodsFindTheEdgeAPI: a pod with its ordinary in-cluster configuration reads and
// watches the objects that it may online and offline, also when it is restarted without a link, and
// receives changes once there is one. Forbidden requests are forbidden either way, and one that is
// not known to be allowed is refused.
func TestIsland_Rule6_PodsFindTheEdgeAPI(t *testing.T) {
	s := newSystem(t)
	ns, pod := s.followerPod()
	s.waitLog("edge1", ns, pod, "watched one", "got one", "secrets Forbidden")

	s.Cut("edge1")
	s.waitUnlinked("edge1")
	before := s.Containers("edge1")
	s.Check(os.WriteFile(s.path("edge1", "/var/lib/follower-state/crash"), nil, 0o644))
	s.WaitFor("the container to run again", func(context.Context) error { return s.replaced("edge1", before) })
	s.waitLog("edge1", ns, pod, "watched one", "got one", "secrets Forbidden")
	// Allowed or not: without a link that is unknown, so it is asked to retry.
	s.Check(os.WriteFile(s.path("edge1", "/var/lib/follower-state/leases"), nil, 0o644))
	s.waitLog("edge1", ns, pod, "leases ServiceUnavailable")

	s.Kubectl("--namespace="+ns, "patch", "configmap", "followed", "--patch", `{"data":{"k":"two"}}`)
	s.Heal("edge1")
	s.waitLog("edge1", ns, pod, "watched two", "got two", "secrets Forbidden", "leases Forbidden")
}

// A host of the LAN that routes the pods' listener to a device completes no handshake there: its
// packets do come, as Linux takes them for any address that it has.
func TestPodsListenerFromTheLAN(t *testing.T) {
	s := newSystem(t)
	const at, client = "169.254.20.20", "client"
	edge := lab.LAN(1).Addr().String()
	s.onHost(client, "ip", "route", "replace", at+"/32", "via", edge)
	t.Cleanup(func() { s.Must(s.Run(context.Background(), "exec", client, "--", "ip", "route", "del", at+"/32")) })
	for host, want := range map[string]bool{client: false, "edge1": true} {
		h, err := s.Trial.Host(host)
		s.Check(err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		conn, err := h.Dial(ctx, "tcp", at+":10550")
		s.Check(err)                                                                                // otherwise the way there is no evidence
		shaken := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, ServerName: "kubernetes"}) //nolint:gosec // who it is does not matter here
		err = shaken.HandshakeContext(ctx)
		if err == nil { // TLS 1.3: the client is done before it gets a refusal
			_, err = fmt.Fprint(shaken, "GET /healthz HTTP/1.1\r\nHost: kubernetes\r\nConnection: close\r\n\r\n")
			if err == nil {
				_, err = bufio.NewReader(shaken).ReadString('\n')
			}
		}
		if (err == nil) != want {
			t.Errorf("from %s: %v; want an answer: %v", host, err, want)
		}
		_ = conn.Close()
		cancel()
	}
}
