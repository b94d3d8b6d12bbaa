package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestEveryday_24: a pod has filled the kubelet's disk to the last byte when edgecore starts
// without a link. The kubelet starts nevertheless and empties the pod's volume, and all pods run
// again.
func TestEveryday_24_APodHasFilledTheDisk(t *testing.T) {
	const node, root = "edge1", "/run/kubelet-small"
	s := newSystem(t)
	ns := s.Namespace()
	// The threshold is the kubelet's own default: the trial's is less than edgecore's reserve.
	set := func(ctx context.Context, dir, period, nodefs string) error {
		return s.Trial.Set(ctx, node, []string{
			"modules.edged.rootDir=" + dir, "modules.edged.kubelet.evictionPressureTransitionPeriod=" + period,
			fmt.Sprintf(`modules.edged.kubelet.evictionHard={"memory.available":"100Mi","nodefs.available":%q,"imagefs.available":"1%%"}`, nodefs),
		})
	}
	s.onHost(node, "sh", "-c", "mkdir -p "+root+" && mount -t tmpfs -o size=4m,mode=755 small "+root)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		err := set(ctx, "/var/lib/kubelet", "5m", "1%")
		if err = errors.Join(err, s.Trial.Reboot(ctx, node, false)); err != nil { // the disk goes with the boot
			t.Error(err)
		}
	})
	s.Check(set(t.Context(), root, "1s", "10%"))
	s.waitLinked(node)
	s.waitKubelet(node)
	s.Apply(ns, `
apiVersion: v1
kind: Pod
metadata: {name: fills, labels: {app: fills, skerry.io/autonomy: "true"}}
spec:
  nodeName: edge1
  tolerations: [{operator: Exists}]
  terminationGracePeriodSeconds: 1
  volumes: [{name: data, emptyDir: {}}]
  containers: [{name: c, image: "skerry.local/sample:1", imagePullPolicy: IfNotPresent, volumeMounts: [{name: data, mountPath: /data}]}]
`)
	fills, other := s.WaitPods(ns, "app=fills", node, 1)[0], s.pod(ns, "other", node)
	s.Cut(node)
	s.waitUnlinked(node)
	s.Kill(node, "edgecore")
	file := fmt.Sprintf("%s/pods/%s/volumes/kubernetes.io~empty-dir/data/fill", root, fills.UID)
	s.onHost(node, "sh", "-c", "dd if=/dev/zero of="+file+" bs=4k 2>/dev/null; cat /dev/zero >> "+file+" 2>/dev/null; true")
	s.Start(node, "edgecore")
	s.WaitFor("the pod's volume to be empty", func(context.Context) error {
		if left := s.onHost(node, "sh", "-c", "ls "+file+" 2>/dev/null; true"); strings.TrimSpace(left) != "" {
			return fmt.Errorf("%s is there", strings.TrimSpace(left))
		}
		return nil
	})
	s.waitRunningHere(node, fills, *other)
	s.Heal(node)
	s.WaitReady(node, true)
}
