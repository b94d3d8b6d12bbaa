package edged

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// A watch of Services returns the shared copies; other requests are unchanged.
func TestSharing(t *testing.T) {
	theirs := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}}
	source := watch.NewFakeWithChanSize(3, false)
	below := fake.NewClientset()
	below.PrependWatchReactor("*", clienttesting.DefaultWatchReactor(source, nil))
	c := newSharing(below, func(*corev1.Service) *corev1.Service { return theirs })
	if v := reflect.ValueOf(c); v.Kind() != reflect.Pointer || v.IsNil() {
		t.Errorf("the kubelet asks whether the client is nil, and can't of a %v", v.Kind())
	}
	w, err := c.CoreV1().Services("").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	own := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "own"}}
	source.Add(own)
	source.Modify(own)
	source.Delete(own)
	for _, want := range []*corev1.Service{theirs, theirs, own} {
		if e := <-w.ResultChan(); e.Object != want {
			t.Errorf("%s: %v", e.Type, e.Object)
		}
	}
	if newSharing(below, nil) != below {
		t.Error("without sharing the client is another one")
	}
}
