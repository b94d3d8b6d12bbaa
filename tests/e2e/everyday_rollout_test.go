package e2e_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestEveryday_15: with one device cut off a DaemonSet rolls out nowhere, as Kubernetes has it, and
// an event of the DaemonSet names the device. With more that may be unavailable the others get the
// new version, and the device when it is back.
func TestEveryday_15_RolloutNamesTheDeviceThatItWaitsFor(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	manifest := func(most, version string) string {
		return `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  updateStrategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: ` + most + `}}
  template:
    metadata: {labels: {app: agent, version: ` + version + `}}
    spec:
      tolerations: [{operator: Exists}]
      affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [edge1, edge2]}]}]}}}
      containers: [{name: c, image: "skerry.local/sample:1", imagePullPolicy: IfNotPresent}]
`
	}
	s.Apply(ns, manifest("1", "one"))
	s.WaitPods(ns, "version=one", "edge1", 1)
	s.WaitPods(ns, "version=one", "edge2", 1)
	s.Cut("edge2")
	s.WaitReady("edge2", false)
	s.Apply(ns, manifest("1", "two"))
	s.WaitFor("an event of the DaemonSet", func(ctx context.Context) error {
		events, err := s.Client.CoreV1().Events(ns).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=agent,reason=RolloutWaitsForDevices"})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if strings.Contains(e.Message, "away: edge2.") {
				return nil
			}
		}
		return fmt.Errorf("there are %v", events.Items)
	})
	s.Apply(ns, manifest("2", "two"))
	s.WaitPods(ns, "version=two", "edge1", 1)
	s.Heal("edge2")
	s.WaitReady("edge2", true)
	s.WaitPods(ns, "version=two", "edge2", 1)
}
