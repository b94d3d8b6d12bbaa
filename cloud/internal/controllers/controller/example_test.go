package controller_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/cloud/internal/controllers/controller"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/poll"
)

// Banner becomes a ConfigMap of its name. A real kind is in common/api/v1alpha1, where
// `make generate` writes DeepCopyObject and the CRD.
type Banner struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Text string `json:"text"`
	} `json:"spec"`
	Status BannerStatus `json:"status,omitzero"`
}

// BannerStatus has the condition Ready.
type BannerStatus struct {
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// DeepCopyObject implements runtime.Object.
func (b *Banner) DeepCopyObject() runtime.Object {
	c := *b
	c.ObjectMeta = *b.ObjectMeta.DeepCopy()
	c.Status.Conditions = append([]metav1.Condition(nil), b.Status.Conditions...)
	return &c
}

const bannerLabel = "example.skerry.io/banner"

func bannerResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "example.skerry.io", Version: "v1", Resource: "banners"}
}

// plan is the core: from the objects to the changes, without a client or an error. With a nil
// ConfigMap only the status is written.
func plan(b *Banner, have *corev1.ConfigMap) (*corev1.ConfigMap, BannerStatus) {
	ready := metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Written", Message: "the ConfigMap has the text", ObservedGeneration: b.Generation}
	want := &corev1.ConfigMap{}
	if have != nil {
		want = have.DeepCopy()
	} else {
		want.Namespace, want.Name, want.Labels = b.Namespace, b.Name, map[string]string{bannerLabel: b.Name}
		want.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(b, bannerResource().GroupVersion().WithKind("Banner"))}
	}
	want.Data = map[string]string{"text": b.Spec.Text}
	if have != nil && !metav1.IsControlledBy(have, b) {
		want = nil
		ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, "NameTaken", "there is a ConfigMap of this name that does not belong to the Banner"
	}
	status := BannerStatus{Conditions: append([]metav1.Condition(nil), b.Status.Conditions...)}
	meta.SetStatusCondition(&status.Conditions, ready)
	return want, status
}

// bannerRun is one leadership.
type bannerRun struct {
	banners *controller.Collection[Banner]
	maps    *controller.Kind[corev1.ConfigMap]
}

// bannerController is a line in cloud/app.
func bannerController() controller.Config {
	return controller.Config{Name: "banners", Start: func(_ context.Context, r *controller.Run) (controller.Work, error) {
		c := &bannerRun{
			banners: controller.Watch[Banner](r, bannerResource(), r.Own),
			maps:    controller.Of[corev1.ConfigMap](r, corev1.SchemeGroupVersion.WithResource("configmaps")),
		}
		// The shared copies have no ConfigMaps: those with our label are watched here.
		ours := r.Informers(informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = bannerLabel }))
		changed := func(o any) {
			if key, err := cache.DeletionHandlingObjectToName(o); err == nil {
				r.Enqueue(kube.Key{Namespace: key.Namespace, Name: key.Name})
			}
		}
		_, err := ours.Core().V1().ConfigMaps().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
			UpdateFunc: func(_, o any) { changed(o) }, DeleteFunc: changed,
		})
		return controller.Keyed(2, c.reconcile), err
	}}
}

func (c *bannerRun) reconcile(ctx context.Context, key kube.Key) (time.Duration, error) {
	b, err := c.banners.Get(key)
	if err != nil || b == nil || b.DeletionTimestamp != nil {
		return 0, err
	}
	have, err := c.maps.GetLive(ctx, key)
	if err != nil {
		return 0, err
	}
	want, status := plan(b, have)
	switch {
	case want == nil:
	case have == nil:
		err = c.maps.Create(ctx, want)
	case !maps.Equal(have.Data, want.Data):
		err = c.maps.Update(ctx, want)
	}
	if err != nil || equality.Semantic.DeepEqual(status, b.Status) {
		return 0, err
	}
	b.Status = status
	if err := c.banners.UpdateStatus(ctx, b); err != nil {
		return 0, err
	}
	ready, kind := meta.FindStatusCondition(status.Conditions, "Ready"), corev1.EventTypeNormal
	if ready.Status != metav1.ConditionTrue {
		kind = corev1.EventTypeWarning
	}
	c.banners.Event(b, kind, ready.Reason, ready.Message)
	return 0, nil
}

// The example works at a real kube-apiserver: a Banner becomes a ConfigMap, which is put back when
// somebody changes or deletes it; a name that is taken is reported; status and events are there.
func TestBanner(t *testing.T) {
	plane := cluster.Run(t)
	raw, err := os.ReadFile("testdata/banners.yaml")
	if err != nil {
		t.Fatal(err)
	}
	crd := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(raw, &crd.Object); err != nil {
		t.Fatal(err)
	}
	plane.ApplyObjects(t, crd)
	all, err := dynamic.NewForConfig(plane.Admin())
	if err != nil {
		t.Fatal(err)
	}
	ns := plane.Namespace(t)
	banners, configMaps := all.Resource(bannerResource()).Namespace(ns), plane.Client().CoreV1().ConfigMaps(ns)
	client, err := kube.NewClient(plane.Admin(), kube.Constrained)
	if err != nil {
		t.Fatal(err)
	}
	collections := kube.NewInformers(client)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return collections.Run(ctx) })
	g.Go(func() error { return controller.NewManager(client, collections).Run(ctx, bannerController()) })
	defer func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	}()
	banner := func(name, text string) {
		t.Helper()
		b := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.skerry.io/v1", "kind": "Banner", "metadata": map[string]any{"name": name}, "spec": map[string]any{"text": text},
		}}
		poll.Eventually(t, "Banners to be served", func(ctx context.Context) error {
			_, err := banners.Apply(ctx, name, b, metav1.ApplyOptions{FieldManager: "test"})
			return err
		})
	}
	has := func(name, want string) {
		t.Helper()
		poll.Eventually(t, "ConfigMap "+name+" to have "+want, func(ctx context.Context) error {
			m, err := configMaps.Get(ctx, name, metav1.GetOptions{})
			if err == nil && m.Data["text"] != want {
				err = fmt.Errorf("it has %q", m.Data["text"])
			}
			return err
		})
	}
	reports := func(name, want string) {
		t.Helper()
		poll.Eventually(t, "Banner "+name+" to be "+want, func(ctx context.Context) error {
			b, err := banners.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			conditions, _, err := unstructured.NestedSlice(b.Object, "status", "conditions")
			if text := fmt.Sprint(conditions); err != nil || !strings.Contains(text, "reason:"+want) {
				return fmt.Errorf("its conditions are %s, %v", text, err)
			}
			events, err := plane.Client().CoreV1().Events(ns).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Banner,involvedObject.name=" + name + ",reason=" + want})
			if err == nil && len(events.Items) == 0 {
				err = fmt.Errorf("there is no event %s", want)
			}
			return err
		})
	}
	taken := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "taken"}, Data: map[string]string{"text": "mine"}}
	if _, err := configMaps.Create(ctx, taken, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	banner("north", "Line 3")
	banner("taken", "Line 4")
	has("north", "Line 3")
	reports("north", "Written")
	reports("taken", "NameTaken")
	has("taken", "mine")
	banner("north", "Line 5")
	has("north", "Line 5")
	if err := configMaps.Delete(ctx, "north", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	has("north", "Line 5")
}

// The page shows this file's code as it is here.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/dev/controller.md")
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(page), "```go\n")
	if len(blocks) < 2 {
		t.Fatal("the page has no Go code")
	}
	for _, b := range blocks[1:] {
		text, _, _ := strings.Cut(b, "```")
		if !strings.Contains(string(code), text) {
			t.Errorf("the page has code that the example does not have:\n%s", text)
		}
	}
}
