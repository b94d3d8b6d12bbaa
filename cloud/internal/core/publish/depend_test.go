package publish_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/core/publish"
	"github.com/skerry-io/skerry/common/dependency"
)

func TestDependenciesTravelBeforeThePod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		c.synced(t, kube.Pods)
		c.configMap(t, "shared", "1")
		e.connect(publish.New(c, c, c, publish.DefaultQuotas()), podsOf(1, "edge1"), dependencies(2))
		want(t, "synced", e.syncedIDs(), map[uint64]bool{1: true, 2: true})
		e.takeLog()

		c.put(t, kube.Pods, pod("a", "edge1", "shared"))
		synctest.Wait()
		want(t, "with its ConfigMap", e.takeLog(), []string{"+configmaps/shared", "+pods/a"})

		c.put(t, kube.Pods, pod("b", "edge1", "shared"))
		synctest.Wait()
		want(t, "a second one, and the ConfigMap is there", e.takeLog(), []string{"+pods/b"})

		late := cmRef("late")
		c.mu.Lock()
		c.missing[late] = true
		c.mu.Unlock()
		c.put(t, kube.Pods, pod("c", "edge1", "shared", "late"))
		synctest.Wait()
		want(t, "it is not known yet whether it exists", e.takeLog(), []string(nil))
		c.put(t, kube.Pods, pod("d", "edge1"))
		synctest.Wait()
		want(t, "others don't wait", e.takeLog(), []string{"+pods/d"})
		c.configMap(t, "late", "1")
		settle()
		want(t, "now it is known", e.takeLog(), []string{"+configmaps/late", "+pods/c"})

		c.put(t, kube.Pods, pod("optional", "edge1", "absent"))
		synctest.Wait()
		want(t, "what doesn't exist blocks no pod", e.takeLog(), []string{"-configmaps/absent", "+pods/optional"})

		c.configMap(t, "shared", "2")
		settle()
		want(t, "an update", e.takeLog(), []string{"+configmaps/shared"})

		for _, name := range []string{"a", "b", "c"} {
			c.store(kube.Pods).Delete(kube.Key{Namespace: "default", Name: name})
		}
		synctest.Wait()
		log := e.takeLog()
		if !slices.Contains(log, "-configmaps/shared") || !slices.Contains(log, "-configmaps/late") {
			t.Errorf("no pod needs them any more, and they stay: %q", log)
		}
		e.disconnect()
		want(t, "watches left", len(c.watches), 0)
	})
}

// settle lets the gathering time pass, and waits for the effects.
func settle() {
	time.Sleep(time.Second)
	synctest.Wait()
}

// The answers of many watches come one by one, and are sent together.
func TestAnswersOfWatchesAreGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const maps = 300
		c, e := newWorld(), newEdge(t)
		c.synced(t, kube.Pods)
		p := publish.New(c, c, c, publish.DefaultQuotas())
		e.connect(p, podsOf(1, "edge1"), dependencies(2))
		synctest.Wait()
		e.takeLog()
		var names []string
		c.mu.Lock()
		for i := range maps {
			names = append(names, fmt.Sprintf("m%03d", i))
			c.missing[cmRef(names[i])] = true
		}
		c.mu.Unlock()
		c.put(t, kube.Pods, pod("a", "edge1", names...))
		synctest.Wait()
		before := e.states
		for _, name := range names {
			c.configMap(t, name, "1")
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		settle()
		log := e.takeLog()
		if len(log) != maps+1 || log[maps] != "+pods/a" {
			t.Fatalf("%d changes came, the last is %s: want the pod after all %d ConfigMaps", len(log), log[len(log)-1], maps)
		}
		// One comes each millisecond, and five are waited for.
		if n := e.states - before; n > maps/4 {
			t.Errorf("they came in %d States", n)
		}
		c.configMap(t, names[0], "2")
		synctest.Wait()
		want(t, "an update, which waits for nothing", e.takeLog(), []string{"+configmaps/m000"})
		e.disconnect()
	})
}

// Updates that follow each other share States, in their order, and other changes don't wait for
// them.
func TestUpdatesAreGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const maps = 300
		c, e := newWorld(), newEdge(t)
		c.synced(t, kube.Pods)
		var names, all []string
		for i := range maps {
			names = append(names, fmt.Sprintf("m%03d", i))
			all = append(all, "+configmaps/"+names[i])
			c.configMap(t, names[i], "1")
		}
		e.connect(publish.New(c, c, c, publish.DefaultQuotas()), podsOf(1, "edge1"), dependencies(2))
		c.put(t, kube.Pods, pod("a", "edge1", names...))
		settle()
		e.takeLog()
		before := e.states
		for _, name := range names {
			c.configMap(t, name, "2")
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		settle()
		want(t, "the updates", e.takeLog(), all)
		// One comes each millisecond, and twenty are waited for.
		if n := e.states - before; n > maps/15 {
			t.Errorf("they came in %d States", n)
		}

		c.configMap(t, names[0], "3")
		synctest.Wait()
		want(t, "one alone, which waits for none", e.takeLog(), all[:1])
		c.configMap(t, names[1], "3")
		synctest.Wait()
		want(t, "one that follows it waits", e.takeLog(), []string(nil))
		c.put(t, kube.Pods, pod("b", "edge1", names[1]))
		synctest.Wait()
		want(t, "a pod doesn't, and comes behind it", e.takeLog(), []string{all[1], "+pods/b"})
		e.disconnect()
	})
}

func TestResumeOfDependencies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		var names []string
		for i := range 500 {
			names = append(names, fmt.Sprintf("cm%03d", i))
			c.configMap(t, names[i], "1")
		}
		c.synced(t, kube.Pods, pod("big", "edge1", names...))
		p := publish.New(c, c, c, publish.DefaultQuotas())
		e.connect(p, podsOf(1, "edge1"), dependencies(2))
		want(t, "config maps", len(e.names(kube.ConfigMaps)), 500)
		if i, j := slices.Index(e.log, "+pods/big"), slices.Index(e.log, "+configmaps/cm499"); i < j {
			t.Error("the pod came before what it needs")
		}
		e.disconnect()

		e.connect(p, podsOf(1, "edge1"), dependencies(2))
		log := e.takeLog()
		slices.Sort(log)
		want(t, "nothing changed", log, []string{"synced 1", "synced 2"})
		e.disconnect()

		c.configMap(t, "cm123", "2")
		c.store(kube.Pods).Delete(kube.Key{Namespace: "default", Name: "absent"})
		e.connect(p, podsOf(1, "edge1"), dependencies(2))
		log = e.takeLog()
		slices.Sort(log)
		want(t, "one changed", log, []string{"+configmaps/cm123", "synced 1", "synced 2"})
		e.disconnect()

		c.configMap(t, "cm124", "2")
		running := pod("big", "edge1", names...)
		running.Status.StartTime = &metav1.Time{Time: time.Now()}
		c.put(t, kube.Pods, running)
		c.configMap(t, "late", "1")
		late := pod("new", "edge1", "late")
		c.put(t, kube.Pods, late)
		e.connect(publish.New(c, c, c, publish.DefaultQuotas()), podsOf(1, "edge1"), dependencies(2))
		log = e.takeLog()
		slices.Sort(log)
		want(t, "one changed, and the pod that runs, and a new one", slices.Compact(log),
			[]string{"+configmaps/cm124", "+configmaps/late", "+pods/big", "+pods/new", "synced 1", "synced 2"})
		want(t, "asked", e.asked, []string(nil))
		c.store(kube.Pods).Delete(kube.Key{Namespace: "default", Name: "new"})
		synctest.Wait()
		e.disconnect()

		c.store(kube.Pods).Delete(kube.Key{Namespace: "default", Name: "big"})
		e.connect(p, podsOf(1, "edge1"), dependencies(2))
		want(t, "config maps when the pod is gone", e.names(kube.ConfigMaps), []string{})
		want(t, "pods", e.names(kube.Pods), []string{})
		e.disconnect()
	})
}

func TestClaimsBringTheirVolumesAndSecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv1"}}
		volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv1"}, Spec: corev1.PersistentVolumeSpec{
			ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: "data"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: "d", VolumeHandle: "h", NodeStageSecretRef: &corev1.SecretReference{Namespace: "storage", Name: "key"},
			}},
		}}
		c.synced(t, kube.Claims, claim, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "other"}})
		c.synced(t, kube.Volumes, volume)
		attachment := func(node string) *storagev1.VolumeAttachment {
			return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: dependency.AttachmentName("hd", node)}, Spec: storagev1.VolumeAttachmentSpec{NodeName: node}}
		}
		own := attachment("edge1")
		c.synced(t, dependency.Attachments, own, attachment("edge2"))
		p := pod("db", "edge1")
		p.Spec.Volumes = []corev1.Volume{{Name: "d", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}
		c.synced(t, kube.Pods)
		e.connect(publish.New(c, c, c, publish.DefaultQuotas()), podsOf(1, "edge1"), dependencies(2))
		e.takeLog()
		c.put(t, kube.Pods, p)
		synctest.Wait()
		want(t, "sent", e.takeLog(), []string{"+persistentvolumeclaims/data", "+persistentvolumes/pv1", "-secrets/key", "+volumeattachments/" + own.Name, "+pods/db"})
		own = attachment("edge1")
		own.Status.Attached = true
		c.put(t, dependency.Attachments, own)
		settle()
		want(t, "it is attached", e.takeLog(), []string{"+volumeattachments/" + own.Name})
		e.disconnect()
	})
}

// A claim whose name comes with the pod's status is sent once it is there, and stays as long as
// the pod does, over a new session too.
func TestClaimsOfDevicesTravel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		c.synced(t, kube.Pods)
		c.synced(t, dependency.ServiceAccounts, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "robot"}})
		c.synced(t, dependency.ResourceClaims,
			&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gpu-made"}},
			&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "of-another-pod"}})
		publisher := publish.New(c, c, c, publish.DefaultQuotas())
		e.connect(publisher, podsOf(1, "edge1"), dependencies(2))
		e.takeLog()
		template, made := "gpu", "gpu-made"
		p := pod("p", "edge1")
		p.Spec.ServiceAccountName = "robot"
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &template}}
		c.put(t, kube.Pods, p)
		synctest.Wait()
		want(t, "the claim is not made yet", e.takeLog(), []string{"+serviceaccounts/robot", "+pods/p"})
		p = p.DeepCopy()
		p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: &made}}
		c.put(t, kube.Pods, p)
		synctest.Wait()
		want(t, "it is", e.takeLog(), []string{"+resourceclaims/gpu-made", "+pods/p"})
		e.disconnect()

		e.connect(publisher, podsOf(1, "edge1"), dependencies(2))
		settle()
		again := e.takeLog()
		slices.Sort(again)
		want(t, "nothing new in a new session", again, []string{"synced 1", "synced 2"})
		want(t, "asked", e.asked, []string(nil))
		c.store(kube.Pods).Delete(kube.Key{Namespace: "default", Name: "p"})
		settle()
		log := e.takeLog()
		slices.Sort(log)
		want(t, "the pod is gone", log, []string{"-pods/p", "-resourceclaims/gpu-made", "-serviceaccounts/robot"})
		e.disconnect()
	})
}

// A cluster with the rights of an older cloudcore, or without a resource: pods are sent without it,
// the edge's copies are not deleted, and it is sent once it may be followed.
func TestPodsTravelWithoutWhatMayNotBeFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, e := newWorld(), newEdge(t)
		c.synced(t, kube.Pods)
		accounts := c.store(dependency.ServiceAccounts)
		e.connect(publish.New(c, c, c, publish.DefaultQuotas()), podsOf(1, "edge1"), dependencies(2))
		synctest.Wait()
		e.takeLog()
		p := pod("p", "edge1")
		p.Spec.ServiceAccountName = "robot"
		c.put(t, kube.Pods, p)
		time.Sleep(time.Minute)
		synctest.Wait()
		want(t, "it is not known yet what there is", e.takeLog(), []string(nil))
		accounts.Fail(apierrors.NewForbidden(schema.GroupResource{Resource: "serviceaccounts"}, "", nil))
		time.Sleep(time.Minute)
		synctest.Wait()
		want(t, "it may not be followed", e.takeLog(), []string{"+pods/p"})
		c.synced(t, dependency.ServiceAccounts, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "robot"}})
		settle()
		want(t, "now it may", e.takeLog(), []string{"+serviceaccounts/robot"})
		e.disconnect()
	})
}
