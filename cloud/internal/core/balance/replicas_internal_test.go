package balance

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation"
)

func report(sessions int, at string) string {
	return fmt.Sprintf(`{"sessions":%d,"max":100,"at":%q}`, sessions, at)
}

// Which replicas serve: those that are seen to renew, whatever their own clocks.
func TestReplicas(t *testing.T) {
	begin := time.Now()
	type look struct {
		after time.Duration
		says  map[string]string // by instance
		want  []int             // sessions of those that serve
	}
	for name, looks := range map[string][]look{
		"renewed": {
			{0, map[string]string{"b": report(1, "1")}, nil},
			{10 * time.Second, map[string]string{"b": report(2, "2")}, []int{2}},
			{20 * time.Second, map[string]string{"b": report(3, "3")}, []int{3}},
		},
		"the same number each time": {
			{0, map[string]string{"b": report(1, "1")}, nil},
			{10 * time.Second, map[string]string{"b": report(1, "2")}, []int{1}},
		},
		"left by one that is gone": {
			{0, map[string]string{"b": report(1, "1")}, nil},
			{10 * time.Second, map[string]string{"b": report(1, "1")}, nil},
			{time.Hour, map[string]string{"b": report(1, "1")}, nil},
		},
		"stops to renew": {
			{0, map[string]string{"b": report(1, "1")}, nil},
			{10 * time.Second, map[string]string{"b": report(1, "2")}, []int{1}},
			{39 * time.Second, map[string]string{"b": report(1, "2")}, []int{1}},
			{40 * time.Second, map[string]string{"b": report(1, "2")}, nil},
			{50 * time.Second, map[string]string{"b": report(1, "3")}, []int{1}},
		},
		"its clock is wrong, and goes back": {
			{0, map[string]string{"b": report(1, "1971-01-01T00:00:00Z")}, nil},
			{10 * time.Second, map[string]string{"b": report(1, "2100-01-01T00:00:00Z")}, []int{1}},
			{20 * time.Second, map[string]string{"b": report(2, "1999-01-01T00:00:00Z")}, []int{2}},
		},
		"withdraws": {
			{0, map[string]string{"b": report(1, "1")}, nil},
			{10 * time.Second, map[string]string{"b": report(1, "2")}, []int{1}},
			{11 * time.Second, nil, nil},
		},
		"not ours": {
			{0, map[string]string{"b": "{", "c": report(-1, "1"), "a": report(7, "1")}, nil},
			{10 * time.Second, map[string]string{"b": "x", "c": report(-1, "2"), "a": report(7, "2")}, nil},
		},
	} {
		r := replicas{own: Key("a"), of: map[string]*replica{}}
		for i, l := range looks {
			annotations := map[string]string{"kubectl.kubernetes.io/x": report(1, "y")}
			for instance, text := range l.says {
				annotations[Key(instance)] = text
			}
			now := begin.Add(l.after)
			r.observe(annotations, now)
			var got []int
			for _, c := range r.serving(now) {
				got = append(got, c.Sessions)
			}
			if diff := cmp.Diff(l.want, got); diff != "" {
				t.Errorf("%s, look %d (-want +got):\n%s", name, i+1, diff)
			}
		}
	}
}

// A count that was seen just now may be as old as the look before.
func TestReplicas_CountedSince(t *testing.T) {
	begin := time.Now()
	r := replicas{own: Key("a"), of: map[string]*replica{}}
	at := func(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }
	for i := range 4 {
		r.observe(map[string]string{Key("b"): report(1, fmt.Sprint(i))}, at(10*i))
	}
	if !r.countedSince(at(20), at(30)) || r.countedSince(at(21), at(30)) {
		t.Error("the count was seen at 30 s, and not yet at 20 s")
	}
	if !r.countedSince(at(50), at(60)) {
		t.Error("one that no longer serves is waited for")
	}
}

func TestReplicas_Gone(t *testing.T) {
	begin := time.Now()
	r := replicas{own: Key("a"), of: map[string]*replica{}}
	r.observe(map[string]string{Key("a"): report(1, "1"), Key("b"): report(1, "1"), "other": "1"}, begin)
	if got := r.gone(begin.Add(forget - time.Second)); got != nil {
		t.Errorf("too early: %v", got)
	}
	if diff := cmp.Diff([]string{Key("b")}, r.gone(begin.Add(forget))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestKey(t *testing.T) {
	for _, instance := range []string{"cloudcore-7d9f8b6c5-abcde-x1y2z", strings.Repeat("-", 90) + "x", strings.Repeat("host.", 20) + "abcde"} {
		if problems := validation.IsQualifiedName(Key(instance)); len(problems) > 0 {
			t.Errorf("%s: %v", Key(instance), problems)
		}
	}
}
