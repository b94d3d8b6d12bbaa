package main

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/edge/app"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/edgehub"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/outbox"
	"github.com/skerry-io/skerry/edge/internal/pods/podhealth"
	"github.com/skerry-io/skerry/edge/internal/setup/join"
	"github.com/skerry-io/skerry/edge/internal/site/contact"
	"github.com/skerry-io/skerry/tests/golden"
)

// The printed text: a link that is up, and modules and agents with a problem or a note.
func TestStatus(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	s := app.Status{
		Node: "edge-17", Running: true, Version: "v1.2.3", Kubernetes: "v1.37.1", At: now, Kubelet: "running",
		NodeProblems: []string{"node NotReady: container runtime is down"},
		KubeletNotes: []string{"deleted the kubelet's file cpu_manager_state, with which it would not start: other CPUs"},
		Pods: &podhealth.Status{Total: 3, Running: 2, Finished: 1, NotRunning: []podhealth.Pod{{
			Namespace: "default", Name: "web-0", State: podhealth.Ended, Reason: "Evicted", Message: "The node was low on resource: ephemeral-storage.",
			Action: "runs again on this device once there is enough disk (DiskPressure): free space on it",
		}}},
		Link: &edgehub.Status{
			Linked: true, Server: "cloud.example.com:443", Transport: "quic", Instance: "cloudcore-0", Version: "v1.2.3",
			Since: now.Add(-90 * time.Minute), LastContact: now.Add(-3 * time.Second),
		},
		Identity: &join.Status{Node: "edge-17", NotAfter: now.Add(365 * 24 * time.Hour), RotateAt: now.Add(250 * 24 * time.Hour)},
		Site: &contact.State{Peers: []contact.Peer{
			{Node: "edge-18", Status: "Met", Address: netip.MustParseAddr("192.0.2.18"), Pods: 2}, {Node: "edge-19", Status: "Unmet"},
		}},
		Data: &metamanager.Status{Outbox: metamanager.OutboxStatus{Status: outbox.Status{Waiting: map[string]int{"EVENT": 8, "NODE_STATUS": 1, "POD_STATUS": 2}}}},
		Modules: []beehive.ModuleHealth{
			{Name: "metamanager", State: beehive.Ready, Since: now.Add(-2 * time.Hour)},
			{Name: "podnet", State: beehive.BackingOff, Since: now.Add(-time.Minute), Restarts: 4, LastError: "opening netlink: no buffer space available"},
		},
		Agents: []agent.State{
			{Name: "apiredirect", Syncs: 7},
			{Name: "endpoints", Note: "the cluster's services are not known yet"},
			{Name: "services", Note: "off: the pod kube-system/kube-proxy-x7x2k serves Services on this device", Syncs: 3},
			{Name: "vip", Problem: "looking for iptables: exec: \"iptables\": executable file not found in $PATH", Failures: 12, Syncs: 12},
		},
	}
	var out strings.Builder
	if err := writeStatus(&out, s); err != nil {
		t.Fatal(err)
	}
	golden.Check(t, "testdata/status.golden", out.String())
}

// The reason of a failed hook is the last line of its output.
func TestOperationList(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	one := 1
	s := drain.State{Operations: []drain.Operation{{Name: "a", Stage: drain.Failed, Message: "the hook of Reboot: exit status 1", ExitCode: &one, Output: "trying\nno such unit\n\n", RequestedAt: now}}}
	var out strings.Builder
	if err := writeOperations(&out, s, now); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "exit status 1: no such unit\n") {
		t.Error(out.String())
	}
}
