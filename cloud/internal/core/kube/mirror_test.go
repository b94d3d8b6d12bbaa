package kube

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A mirror has its store's objects, whether they were there before or come later, and reports the
// changes that count.
func TestMirror(t *testing.T) {
	put := func(s *Store, name, uid, node string) {
		t.Helper()
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, UID: types.UID(uid), ResourceVersion: uid}, Spec: corev1.PodSpec{NodeName: node}}
		if err := s.Put(p); err != nil {
			t.Fatal(err)
		}
	}
	read := func(o *Object) (*string, error) {
		if o.Node() == "bad" {
			return nil, fmt.Errorf("it is bad")
		}
		return new(o.Name + "@" + o.Node()), nil
	}
	s := NewStore(Pods)
	put(s, "early", "1", "a")
	m, changes := NewMirror(read, func(old, now *string) bool { return *old == *now }), 0
	cancel := m.Follow(s, func() { changes++ })
	check := func(what string, wantChanges int, want ...string) {
		t.Helper()
		all, err := m.List()
		if err != nil {
			t.Error(err)
		}
		var got []string
		for _, o := range all {
			got = append(got, *o)
		}
		slices.Sort(got)
		if d := cmp.Diff(want, got); d != "" || changes != wantChanges {
			t.Errorf("%s: %d changes, want %d; (-want +got)\n%s", what, changes, wantChanges, d)
		}
		changes = 0
	}
	check("what was there", 0, "early@a")
	put(s, "late", "2", "a")
	check("a new one", 1, "early@a", "late@a")
	put(s, "late", "3", "a")
	check("the same again", 0, "early@a", "late@a")
	put(s, "late", "4", "b")
	check("another", 1, "early@a", "late@b")
	put(s, "late", "5", "bad")
	if _, err := m.List(); err == nil || err.Error() != "reading n/late: it is bad" || changes != 1 {
		t.Errorf("one that can't be read: %v, %d changes", err, changes)
	}
	changes = 0
	s.Delete(Key{"n", "late"})
	check("it is gone", 1, "early@a")
	cancel()
	put(s, "later", "6", "a")
	check("after it was cancelled", 0, "early@a")
}
