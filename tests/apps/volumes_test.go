package apps_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Longhorn's kinds, as far as cloudcore reads them. The tests play its controllers: Longhorn
// does not run here.
const longhornCRDs = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: replicas.longhorn.io}
spec:
  group: longhorn.io
  scope: Namespaced
  names: {plural: replicas, singular: replica, kind: Replica, listKind: ReplicaList}
  versions:
  - name: v1beta2
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: volumes.longhorn.io}
spec:
  group: longhorn.io
  scope: Namespaced
  names: {plural: volumes, singular: volume, kind: Volume, listKind: VolumeList}
  versions:
  - name: v1beta2
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

func replicas() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "longhorn.io", Version: "v1beta2", Resource: "replicas"}
}

// longhorn installs its kinds until the test ends.
func (s *system) longhorn(namespace string) {
	s.T.Helper()
	s.Apply(namespace, longhornCRDs)
	s.T.Cleanup(func() {
		if out, err := s.Run(context.Background(), "kubectl", "delete", "crd", "replicas.longhorn.io", "volumes.longhorn.io", "--wait=false"); err != nil {
			s.T.Error(out, err)
		}
	})
	s.WaitFor("Longhorn's kinds to be served", func(ctx context.Context) error {
		_, err := s.dynamic.Resource(replicas()).List(ctx, metav1.ListOptions{})
		return err
	})
}

// volume plays a replicated volume for a claim: its data is a folder of each node, its replicas are
// healthy on some, and it is attached to one.
func (s *system) volume(namespace, claim, attached string, healthy ...string) (pv string) {
	s.T.Helper()
	pv = namespace + "-" + claim
	ctx := s.T.Context()
	anywhere := corev1.HostPathDirectoryOrCreate
	_, err := s.Client.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: pv},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: "longhorn", ClaimRef: &corev1.ObjectReference{Namespace: namespace, Name: claim},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/" + pv, Type: &anywhere}},
		},
	}, metav1.CreateOptions{})
	s.Check(err)
	s.T.Cleanup(func() {
		if err := s.Client.CoreV1().PersistentVolumes().Delete(context.Background(), pv, metav1.DeleteOptions{}); err != nil {
			s.T.Error(err)
		}
	})
	for _, node := range healthy {
		_, err := s.dynamic.Resource(replicas()).Namespace(namespace).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "longhorn.io/v1beta2", "kind": "Replica", "metadata": map[string]any{"name": pv + "-" + node},
			"spec": map[string]any{"volumeName": pv, "nodeID": node, "healthyAt": "2026-01-01T00:00:00Z", "failedAt": ""},
		}}, metav1.CreateOptions{})
		s.Check(err)
	}
	_, err = s.Client.StorageV1().VolumeAttachments().Create(ctx, &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: pv + "-" + attached},
		Spec:       storagev1.VolumeAttachmentSpec{Attacher: "driver.longhorn.io", NodeName: attached, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv}},
	}, metav1.CreateOptions{})
	s.Check(err)
	s.T.Cleanup(func() {
		if err := s.Client.StorageV1().VolumeAttachments().Delete(context.Background(), pv+"-"+attached, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			s.T.Error(err)
		}
	})
	return pv
}

func (s *system) attached(name string) bool {
	s.T.Helper()
	_, err := s.Client.StorageV1().VolumeAttachments().Get(s.T.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		s.T.Fatal(err)
	}
	return err == nil
}

// replicated is an application with a replicated volume.
func replicated(name, node string) string {
	return strings.Replace(appYAML(name, node, "  volumes: [{name: data, size: 1Gi, replicated: true, storageClassName: longhorn}]"),
		"imagePullPolicy: IfNotPresent}", "imagePullPolicy: IfNotPresent, volumeMounts: [{name: data, mountPath: /data}]}", 1)
}

// TestCluster_11: the node of an application with a volume that has another healthy replica is
// switched off, and a person confirms it. This application's VolumeAttachments there are removed
// and no others, and it runs elsewhere; before the confirmation no object is touched.
// TestCluster_12: of an application whose only healthy replica is on the dead node no object is
// deleted, and the status gives the reason; once there is another replica it moves. TestCluster_13:
// an application with affinity Required stays with its node, also when that is switched off and a
// person confirms it. They share the power-off of one node.
func TestCluster_11_12_13_PowerOff(t *testing.T) {
	s := newSystem(t)
	ns := s.Namespace()
	s.longhorn(ns)
	mine := s.volume(ns, "mine-data", "edge1", "edge1", "edge2")
	stuck := s.volume(ns, "stuck-data", "edge1", "edge1")
	other := s.volume(ns, "nobodys", "edge1", "edge1", "edge2") // of no application
	s.create(ns, replicated("mine", "edge1"))
	s.create(ns, replicated("stuck", "edge1"))
	s.create(ns, appYAML("stays", "edge1", "  affinity: Required"))
	home := s.waitOn(ns, "stays", "edge1")
	s.waitOn(ns, "mine", "edge1")
	before := s.waitOn(ns, "stuck", "edge1")
	s.Check(s.Trial.PowerOff(t.Context(), "edge1"))
	s.WaitReady("edge1", false)
	for _, name := range []string{"mine", "stuck"} {
		s.waitApp(ns, name, "to await fencing", func(a *v1alpha1.EdgeApp) bool { return is(a, v1alpha1.AppAwaitingFencing) != nil })
	}
	s.lasts("nothing is touched", 5*time.Second, func() error {
		for _, name := range []string{"mine", "stuck"} {
			if pods := s.pods(ns, name); len(pods) != 1 || pods[0].DeletionTimestamp != nil {
				return fmt.Errorf("%s has %d pods, or one that is being deleted", name, len(pods))
			}
		}
		if !s.attached(mine+"-edge1") || !s.attached(stuck+"-edge1") {
			return fmt.Errorf("a volume was detached")
		}
		return nil
	})
	s.outOfService("edge1")

	t.Run("TestCluster_11_DetachesThisAppsVolumesAlone", func(*testing.T) {
		app := s.waitApp(ns, "mine", "to run elsewhere", func(a *v1alpha1.EdgeApp) bool {
			return a.Status.Phase == v1alpha1.PhaseRunning && a.Status.ActiveNode != "edge1" && a.Status.ActiveNode != ""
		})
		if app.Status.Failovers != 1 || app.Status.LastMove == nil || app.Status.LastMove.From != "edge1" {
			t.Errorf("%+v", app.Status)
		}
		if s.attached(mine + "-edge1") {
			t.Error("its volume is attached to the dead node")
		}
		if !s.attached(other + "-edge1") {
			t.Error("a volume of no concern was detached")
		}
		events := s.Kubectl("get", "events", "-n", ns)
		for _, want := range []string{"AwaitingFencing", "NodeConfirmedDead", "FailedOver"} {
			if !strings.Contains(events, want) {
				t.Errorf("no event %s in\n%s", want, events)
			}
		}
	})
	t.Run("TestCluster_12_OnlyHealthyReplicaIsLeftAlone", func(*testing.T) {
		app := s.waitApp(ns, "stuck", "to be refused", func(a *v1alpha1.EdgeApp) bool { return a.Status.Phase == v1alpha1.PhaseFailoverRefused })
		if c := is(app, v1alpha1.AppFailoverRefused); c == nil || c.Reason != "NoHealthyReplica" || !strings.Contains(c.Message, stuck) {
			t.Errorf("%+v", app.Status.Conditions)
		}
		s.lasts("nothing is deleted", 25*time.Second, func() error { // longer than Kubernetes' own collector of such pods takes
			pods := s.pods(ns, "stuck")
			if len(pods) != 1 || pods[0].UID != before.UID || pods[0].DeletionTimestamp != nil || !s.attached(stuck+"-edge1") {
				return fmt.Errorf("%d pods, attached: %v", len(pods), s.attached(stuck+"-edge1"))
			}
			return s.stays(ns, home)
		})
		_, err := s.dynamic.Resource(replicas()).Namespace(ns).Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "longhorn.io/v1beta2", "kind": "Replica", "metadata": map[string]any{"name": stuck + "-edge3"},
			"spec": map[string]any{"volumeName": stuck, "nodeID": "edge3", "healthyAt": "2026-01-01T00:00:00Z"},
		}}, metav1.CreateOptions{})
		s.Check(err)
		s.waitApp(ns, "stuck", "to run elsewhere", func(a *v1alpha1.EdgeApp) bool {
			return a.Status.Phase == v1alpha1.PhaseRunning && slices.Contains([]string{"edge2", "edge3"}, a.Status.ActiveNode)
		})
	})
	t.Run("TestCluster_13_RequiredNeverMoves", func(*testing.T) {
		s.Check(s.stays(ns, home))
		s.waitApp(ns, "stays", "to be of a node that is NotReady", func(a *v1alpha1.EdgeApp) bool { return a.Status.Phase == v1alpha1.PhaseNotReady })
		s.inService("edge1")
		s.Mend(t.Context())
		s.waitOn(ns, "stays", "edge1")
		if app, err := s.read(t.Context(), ns, "stays"); err != nil || app.Status.Failovers != 0 {
			t.Errorf("%v, %+v", err, app.Status)
		}
	})
}

// stays reports a pod that is not where it was, or another one of its application.
func (s *system) stays(namespace string, home corev1.Pod) error {
	for _, p := range s.pods(namespace, home.Labels[v1alpha1.EdgeAppLabel]) {
		if p.UID != home.UID || p.DeletionTimestamp != nil {
			return fmt.Errorf("pod %s on %q, deleted %v", p.Name, p.Spec.NodeName, p.DeletionTimestamp)
		}
	}
	return nil
}
