package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/build/image"
	"github.com/skerry-io/skerry/common/dependency"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/binary"
)

const devicesImage = "skerry.local/devices:1"

// devices puts the image of the drivers on a node.
func (s *system) devices(node string) {
	s.T.Helper()
	program := filepath.Join(s.T.TempDir(), "devices")
	s.Check(binary.BuildStatic(s.T.Context(), s.Root, program, "./tests/images/devices"))
	archive := s.path(node, "/var/lib/devices.tar")
	s.Check(image.WriteFile(archive, devicesImage, program))
	s.T.Cleanup(func() { _ = os.Remove(archive) })
	s.onHost(node, "ctr", "--namespace=k8s.io", "images", "import", "/var/lib/devices.tar")
}

// driver runs a program of the drivers' image on edge1, as a DaemonSet with the kubelet's folders
// and an account "devices".
func (s *system) driver(ns, program string) {
	s.T.Helper()
	s.devices("edge1")
	s.Apply(ns, fmt.Sprintf(`
apiVersion: v1
kind: ServiceAccount
metadata: {name: devices}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: %[1]s}
spec:
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      serviceAccountName: devices
      nodeSelector: {kubernetes.io/hostname: edge1}
      tolerations: [{operator: Exists}]
      terminationGracePeriodSeconds: 1
      containers:
      - name: c
        image: %[2]s
        args: [%[1]s]
        env: [{name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        securityContext: {privileged: true}
        volumeMounts: [{name: k, mountPath: /var/lib/kubelet}]
      volumes: [{name: k, hostPath: {path: /var/lib/kubelet}}]
`, program, devicesImage))
	s.WaitPods(ns, "app="+program, "edge1", 1)
}

// deviceUser is a pod "user" of edge1 that uses a driver's devices: its container and its spec have
// these further fields.
func deviceUser(container, spec string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: user, labels: {app: user}}
spec:
  nodeSelector: {kubernetes.io/hostname: edge1}
  tolerations: [{operator: Exists}]
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: %q, args: [wait], %s}]
  %s
---
`, devicesImage, container, spec)
}

// TestEveryday_06: a pod with a device of DRA runs again after reboots without a link, the same
// one. The driver follows its slices by a selector and publishes them through the device's API;
// they stay when the link comes back.
func TestEveryday_06_DRAPodComesBack(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.Apply(ns, fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: devices-%[1]s}
rules:
- {apiGroups: [resource.k8s.io], resources: [resourceslices], verbs: [get, list, watch, create, update, patch, delete]}
- {apiGroups: [resource.k8s.io], resources: [resourceclaims], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: devices-%[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: devices-%[1]s}
subjects: [{kind: ServiceAccount, name: devices, namespace: %[1]s}]
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: devices.example}
spec: {selectors: [{cel: {expression: 'device.driver == "dra.devices.example"'}}]}
`, ns))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_ = s.Client.RbacV1().ClusterRoles().Delete(ctx, "devices-"+ns, metav1.DeleteOptions{})
		_ = s.Client.RbacV1().ClusterRoleBindings().Delete(ctx, "devices-"+ns, metav1.DeleteOptions{})
		_ = s.Client.ResourceV1().DeviceClasses().Delete(ctx, "devices.example", metav1.DeleteOptions{})
	})
	s.driver(ns, "dra")
	s.WaitFor("the driver to publish its device", func(ctx context.Context) error {
		all, err := s.Client.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.driver=dra.devices.example"})
		if err != nil || len(all.Items) != 1 {
			return fmt.Errorf("%v, %v", all, err)
		}
		return nil
	})
	t.Cleanup(func() { s.withdraw(ns, "app=user") }) // before the driver: a kubelet can't release devices without it
	s.Apply(ns, `
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one}
spec: {spec: {devices: {requests: [{name: one, exactly: {deviceClassName: devices.example}}]}}}
---
`+deviceUser("resources: {claims: [{name: d}]}", "resourceClaims: [{name: d, resourceClaimTemplateName: one}]"))
	user := s.WaitPods(ns, "app=user", "edge1", 1)[0]

	s.Cut("edge1")
	for range 2 {
		s.crashDriver(ns, "dra")
	}
	for range reboots(5) {
		s.Reboot("edge1", true)
		s.waitRunsAgain("edge1", user)
	}
	s.crashDriver(ns, "dra")
	s.crashDriver(ns, "dra")
	if now := s.now(user); restarts(*now) > int32(reboots(5)) || !s.runs("edge1", now.Status.ContainerStatuses[0].ContainerID) {
		t.Errorf("the driver has ended, and its user with it: %+v", now.Status.ContainerStatuses)
	}
	// With the link back the kubelet retries its first action at the start: delete all slices of
	// its node. The driver runs, so its slice stays.
	slice, deletions := s.slice(), s.sliceDeletions()
	s.Heal("edge1")
	s.WaitReady("edge1", true)
	s.WaitFor("the kubelet to delete its node's slices", func(context.Context) error {
		if s.sliceDeletions() == deletions {
			return errors.New("it has not")
		}
		return nil
	})
	if now := s.slice(); now != slice {
		t.Errorf("the slice of a driver that runs was %s, is %s", slice, now)
	}
	s.notReplaced(user)
}

// TestEveryday_07: a pod with a volume that is attached runs again after reboots without a link,
// the same one.
func TestEveryday_07_PodWithAnAttachedVolumeComesBack(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.Apply(ns, fmt.Sprintf(`
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: csi.devices.example}
spec: {attachRequired: true, podInfoOnMount: false, volumeLifecycleModes: [Persistent]}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: devices-%[1]s}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  csi: {driver: csi.devices.example, volumeHandle: vol-1}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], storageClassName: "", volumeName: devices-%[1]s, resources: {requests: {storage: 1Gi}}}
`, ns))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_ = s.Client.StorageV1().CSIDrivers().Delete(ctx, "csi.devices.example", metav1.DeleteOptions{})
		_ = s.Client.CoreV1().PersistentVolumes().Delete(ctx, "devices-"+ns, metav1.DeleteOptions{})
	})
	s.driver(ns, "csi")
	t.Cleanup(func() { s.withdraw(ns, "app=user") }) // before the driver: a kubelet can't release devices without it
	s.Apply(ns, deviceUser("volumeMounts: [{name: v, mountPath: /data}]", "volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]"))
	// There is no attacher: the test plays it, and the cluster's own controller makes the object.
	name := dependency.AttachmentName("vol-1csi.devices.example", "edge1")
	s.WaitFor("the attachment", func(ctx context.Context) error {
		va, err := s.Client.StorageV1().VolumeAttachments().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		va.Status = storagev1.VolumeAttachmentStatus{Attached: true}
		_, err = s.Client.StorageV1().VolumeAttachments().UpdateStatus(ctx, va, metav1.UpdateOptions{})
		return err
	})
	user := s.WaitPods(ns, "app=user", "edge1", 1)[0]

	for range reboots(5) {
		s.Reboot("edge1", true)
		s.waitRunsAgain("edge1", user)
	}
	s.Heal("edge1")
	s.WaitReady("edge1", true)
	s.notReplaced(user)
}

// crashDriver ends the container of a driver, and waits until it runs again.
func (s *system) crashDriver(ns, program string) {
	s.T.Helper()
	list, err := s.device("edge1").CoreV1().Pods(ns).List(s.T.Context(), metav1.ListOptions{LabelSelector: "app=" + program})
	s.Check(err)
	if len(list.Items) != 1 {
		s.T.Fatalf("there are %d drivers", len(list.Items))
	}
	driver := list.Items[0]
	s.waitRunsAgain("edge1", driver)
	_, id, _ := strings.Cut(s.now(driver).Status.ContainerStatuses[0].ContainerID, "://")
	s.onHost("edge1", "ctr", "--namespace=k8s.io", "tasks", "kill", "--signal=SIGKILL", id)
	s.waitDevice("edge1", ns, driver.Name, func(p *corev1.Pod) error {
		if _, now, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://"); now == id || !running(p) {
			return fmt.Errorf("%+v", p.Status.ContainerStatuses)
		}
		return nil
	})
}

// notReplaced checks that the cluster has the pod of before as the only one of its label app.
func (s *system) notReplaced(before corev1.Pod) {
	s.T.Helper()
	if now := s.WaitPods(before.Namespace, "app="+before.Labels["app"], before.Spec.NodeName, 1)[0]; now.UID != before.UID {
		s.T.Errorf("%s was replaced", before.Name)
	}
}

// withdraw deletes pods and waits until they are gone, whatever the test broke.
func (s *system) withdraw(ns, selector string) {
	s.T.Helper()
	ctx, pods, which := context.WithoutCancel(s.T.Context()), s.Client.CoreV1().Pods(ns), metav1.ListOptions{LabelSelector: selector}
	s.Mend(ctx)
	s.Check(pods.DeleteCollection(ctx, metav1.DeleteOptions{}, which))
	s.WaitForIn(ctx, "the pods "+selector+" to go", func(ctx context.Context) error {
		left, err := pods.List(ctx, which)
		if err == nil && len(left.Items) > 0 {
			err = fmt.Errorf("%d are there still", len(left.Items))
		}
		return err
	})
}

// slice is the UID of the driver's slice.
func (s *system) slice() types.UID {
	s.T.Helper()
	all, err := s.Client.ResourceV1().ResourceSlices().List(s.T.Context(), metav1.ListOptions{FieldSelector: "spec.driver=dra.devices.example"})
	s.Check(err)
	if len(all.Items) != 1 {
		s.T.Fatalf("there are %d slices", len(all.Items))
	}
	return all.Items[0].UID
}

// sliceDeletions counts how often edge1 had slices of its node deleted.
func (s *system) sliceDeletions() int {
	s.T.Helper()
	return len(cluster.ReadAudit(s.T, s.path("cloud", "/var/log/audit.log"), func(r cluster.Request) bool {
		return r.Verb == "deletecollection" && r.ObjectRef.Resource == "resourceslices" && strings.Contains(r.RequestURI, "edge1") && r.ResponseStatus.Code == http.StatusOK
	}))
}

// runs reports whether a container of a pod's status runs on a node.
func (s *system) runs(node, id string) bool {
	_, id, _ = strings.Cut(id, "://")
	return slices.Contains(s.Containers(node), id)
}

// reboots is the number of reboots: the scenario's with SKERRY_LONG=1.
func reboots(all int) int {
	if os.Getenv("SKERRY_LONG") != "" {
		return all
	}
	return 1
}
