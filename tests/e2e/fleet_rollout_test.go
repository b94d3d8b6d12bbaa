package e2e_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

// nodeopset is what kubectl prints of a set.
func (f *fleet) nodeopset(ctx context.Context, name string) (string, error) {
	return f.Run(ctx, "kubectl", "get", "nodeopset", name)
}

// Columns of `kubectl get nodeopset`.
const (
	doneColumn  = 3
	stateColumn = 8
)

// waitSet waits until a column of a set has a value, and logs the set: docs/fleet.md shows that.
func (f *fleet) waitSet(name string, column int, want string) {
	f.T.Helper()
	f.WaitFor("the set to be "+want, func(ctx context.Context) error {
		out, err := f.nodeopset(ctx, name)
		if err != nil {
			return err
		}
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if fields := strings.Fields(lines[len(lines)-1]); len(fields) <= column || fields[column] != want {
			return fmt.Errorf("it is\n%s", out)
		}
		return nil
	})
	f.T.Log(f.Must(f.nodeopset(f.T.Context(), name)))
}

// A canary that fails goes back and stops the roll-out before any other device is touched. The next
// version is good: it reaches the canary, and the set is complete; it reaches the device that was
// away as soon as that has a link again.
func TestFleet_18_BadCanaryStopsAndALateDeviceIsUpgraded(t *testing.T) {
	f := newSystem(t).fleet("edge2")
	f.Kubectl("label", "node", "edge1", "edge2", "fleet-tour=yes")
	f.Kubectl("label", "node", "edge1", "canary=yes")
	t.Cleanup(func() {
		f.Must(f.Run(context.Background(), "kubectl", "label", "node", "edge1", "edge2", "fleet-tour-", "canary-"))
	})
	set := func(version string) {
		t.Helper()
		f.Apply("default", `apiVersion: skerry.io/v1alpha1
kind: NodeOperationSet
metadata: {name: edgecore}
spec:
  template:
    operation: Upgrade
    upgrade: {version: `+version+`}
    healthTimeout: 2m
  nodeSelector: {matchLabels: {fleet-tour: "yes"}}
  waves:
  - selector: {matchLabels: {canary: "yes"}}
  maxParallel: 1
  maxUnavailablePerPool: 2 # both devices are in one pool, and one will be away
`)
	}
	before := f.slotsOf("edge2")
	f.add("v9.4.0", script("exit 1"), nil)
	set("v9.4.0")
	f.waitSet("edgecore", stateColumn, "FailureThreshold")
	out := f.Must(f.Run(t.Context(), "kubectl", "get", "nodeopset", "edgecore", "-o", "jsonpath={.status.failures}"))
	t.Log(out)
	if !strings.Contains(out, `"edge1"`) || !strings.Contains(out, "EndedEarly") || strings.Contains(out, "edge2") {
		t.Errorf("failures are %s", out)
	}
	if after := f.slotsOf("edge2"); after.Confirmed != before.Confirmed || after.Trial != before.Trial {
		t.Errorf("edge2 was touched: %+v", after)
	}
	if s := f.slots(); s.Trial.Digest != "" || s.Confirmed.Version == "v9.4.0" {
		t.Errorf("edge1 has not gone back: %+v", s)
	}

	f.Cut("edge2")
	f.WaitReady("edge2", false)
	good := f.add("v9.4.1", f.another("v9.4.1"), nil)
	set("v9.4.1")
	f.waitSet("edgecore", doneColumn, "1/2")
	f.waitSet("edgecore", stateColumn, "Complete")
	for node, want := range map[string]string{"edge1": good.Digest, "edge2": before.Confirmed.Digest} {
		if s := f.slotsOf(node); s.Confirmed.Digest != want {
			t.Errorf("%s has %+v", node, s)
		}
	}
	f.Heal("edge2")
	f.waitSet("edgecore", doneColumn, "2/2")
	if s := f.slotsOf("edge2"); s.Confirmed.Digest != good.Digest || len(s.Rejected) > 0 {
		t.Errorf("edge2 has %+v", s)
	}
	t.Log(f.Must(f.Run(t.Context(), "kubectl", "get", "events", "--sort-by=.lastTimestamp", "-o", "custom-columns=TYPE:.type,REASON:.reason,OBJECT:.involvedObject.name,MESSAGE:.message")))
}
