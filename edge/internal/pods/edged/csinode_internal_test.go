package edged

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
)

// Without a link the kubelet waits for a CSINode that it would have to write; with one it sees it
// as it is.
func TestCSINode(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "now"}}
	of := func(uid types.UID) *storagev1.CSINode {
		return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "a", OwnerReferences: []metav1.OwnerReference{{Kind: "Node", Name: "a", UID: uid}}}}
	}
	for name, test := range map[string]struct {
		objects []runtime.Object
		linked  bool
		want    metav1.StatusReason // "": it is read
	}{
		"its own":            {[]runtime.Object{node, of("now")}, false, ""},
		"missing":            {[]runtime.Object{node}, false, metav1.StatusReasonServiceUnavailable},
		"missing, linked":    {[]runtime.Object{node}, true, metav1.StatusReasonNotFound},
		"an earlier":         {[]runtime.Object{node, of("before")}, false, metav1.StatusReasonServiceUnavailable},
		"an earlier, linked": {[]runtime.Object{node, of("before")}, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := &waiting{fake.NewClientset(test.objects...), func() bool { return test.linked }}
			o, err := c.StorageV1().CSINodes().Get(t.Context(), "a", metav1.GetOptions{})
			if got := apierrors.ReasonForError(err); (err == nil) != (test.want == "") || err != nil && got != test.want || err == nil && o == nil {
				t.Errorf("read %v, %v; want %q", o, err, test.want)
			}
		})
	}
}
