package e2e_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEveryday_25: no container starts during an orderly shutdown that a long preStop hook holds:
// neither one that ended on its SIGTERM, nor one whose liveness probe has failed since then.
func TestEveryday_25_NothingStartsDuringAShutdown(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.Check(os.RemoveAll(s.path("edge1", notes)))
	pod := func(name, more string) string {
		return `apiVersion: v1
kind: Pod
metadata: {name: ` + name + `, labels: {app: ` + name + `}}
spec:
  nodeName: edge1
  tolerations: [{operator: Exists}]
  dnsPolicy: Default
  volumes: [{name: notes, hostPath: {path: ` + notes + `, type: DirectoryOrCreate}}]
` + more + "\n---\n"
	}
	probe := `httpGet: {path: /healthz, port: 8080}, initialDelaySeconds: 5, periodSeconds: 1, failureThreshold: 1}` // not yet in a start
	live := []string{"live1", "live2", "live3", "live4"}                                                             // one is not restarted by each kubelet that could
	var pods string
	for _, name := range live {
		pods += pod(name, "  containers:\n  - "+container("main", `], livenessProbe: {`+probe))
	}
	s.Apply(ns, pods+pod("holder", "  containers:\n  - "+container("main", `], lifecycle: {preStop: {sleep: {seconds: 12}}}`))+
		pod("plain", "  containers:\n  - "+container("main", `]`))+
		pod("sided", "  initContainers:\n  - "+container("side", `], restartPolicy: Always, livenessProbe: {`+probe)+
			"\n  containers:\n  - "+container("main", `, {name: LISTEN, value: ":8081"}]`)))
	before := s.WaitPods(ns, "", "edge1", 3+len(live))
	s.Cut("edge1")
	s.Check(s.Trial.RebootOrderly(t.Context(), "edge1", false))
	s.waitAgain(s.device("edge1"), ns, before)

	raw, err := os.ReadFile(s.path("edge1", filepath.Join(notes, "all")))
	s.Check(err)
	ended := []string{"holder main", "plain main", "sided side", "sided main"}
	for _, name := range live {
		ended = append(ended, name+" main")
	}
	for _, c := range ended {
		if n := strings.Count(string(raw), c+" sigterm "); n != 1 {
			t.Errorf("%s got SIGTERM %d times: it was started again in the shutdown", c, n)
		}
	}
	if t.Failed() {
		t.Logf("%s", raw)
	}
	s.Heal("edge1")
	s.WaitReady("edge1", true)
}
