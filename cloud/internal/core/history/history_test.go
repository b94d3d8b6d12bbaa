package history_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/skerry-io/skerry/cloud/internal/core/history"
)

var now = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

func at(d time.Duration) string { return now.Add(d).Format(time.RFC3339) }

func replica(d time.Duration) string { return fmt.Sprintf(`{"sessions":1,"at":%q}`, at(d)) }

func TestClaims_17_WhichHistoryHolds(t *testing.T) {
	named := func(more ...string) map[string]string {
		m := map[string]string{history.Annotation: "one", history.SinceAnnotation: at(-time.Hour)}
		for i := 0; i+1 < len(more); i += 2 {
			m[more[i]] = more[i+1]
		}
		return m
	}
	for name, tc := range map[string]struct {
		seen history.Seen
		want string
	}{
		"the first of all":                           {history.Seen{}, ""},
		"starts, nobody was there":                   {history.Seen{Annotations: named()}, ""},
		"starts, its own trace of before":            {history.Seen{Annotations: named("r/a", replica(-time.Second))}, ""},
		"starts, another was there long ago":         {history.Seen{Annotations: named("r/b", replica(-time.Minute))}, ""},
		"starts, another is there":                   {history.Seen{Annotations: named("r/b", replica(-10*time.Second))}, "one"},
		"starts, another says nonsense":              {history.Seen{Annotations: named("r/b", "x")}, ""},
		"starts, another has just named it":          {history.Seen{Annotations: named(history.SinceAnnotation, at(-10*time.Second))}, "one"},
		"is unchanged":                               {history.Seen{Annotations: named(), Own: "one"}, "one"},
		"another replica has noticed":                {history.Seen{Annotations: named(), Own: "zero"}, "one"},
		"the Lease is lost":                          {history.Seen{Own: "one"}, ""},
		"went back":                                  {history.Seen{Annotations: named(), Own: "one", WentBack: true}, ""},
		"went back to before the present name":       {history.Seen{Annotations: named(), Own: "two", WentBack: true}, ""},
		"went back, another replica has named it":    {history.Seen{Annotations: named(history.SinceAnnotation, at(-time.Second)), Own: "zero", WentBack: true}, "one"},
		"went back again right after that was named": {history.Seen{Annotations: named(history.SinceAnnotation, at(-time.Second)), Own: "one", WentBack: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			tc.seen.Replicas, tc.seen.Instance, tc.seen.Now = "r/", "r/a", now
			if got := history.Decide(tc.seen); got != tc.want {
				t.Errorf("want %q, got %q", tc.want, got)
			}
		})
	}
}

// Two replicas see the cluster go back, a moment apart: there is one new name, which both tell.
func TestClaims_17_ReplicasAgreeOnANewHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "replicas"}})
		var mu sync.Mutex
		told := map[string][]string{}
		start := func(instance string) *history.Keeper {
			k := history.New(history.Config{
				Leases: client.CoordinationV1().Leases("ns"), Lease: "replicas", Replicas: "r/", Instance: "r/" + instance,
				Changed: func(id string) {
					mu.Lock()
					defer mu.Unlock()
					told[instance] = append(told[instance], id)
				},
			})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- k.Run(ctx) }()
			t.Cleanup(func() { cancel(); <-done })
			synctest.Wait()
			return k
		}
		a := start("a")
		first := a.ID(t.Context())
		if first == "" {
			t.Fatal("there is no name")
		}
		b := start("b") // takes over the history that a has just named
		time.Sleep(15 * time.Second)
		if a.ID(t.Context()) != b.ID(t.Context()) {
			t.Fatalf("a has %s, b %s", a.ID(t.Context()), b.ID(t.Context()))
		}
		before := a.ID(t.Context())
		a.WentBack()
		time.Sleep(2 * time.Second)
		b.WentBack()
		time.Sleep(15 * time.Second)
		now := a.ID(t.Context())
		if now == before || now != b.ID(t.Context()) {
			t.Errorf("before %s, a has %s, b %s", before, now, b.ID(t.Context()))
		}
		mu.Lock()
		defer mu.Unlock()
		if n := len(told["b"]); told["b"][n-1] != now || n > 3 {
			t.Errorf("told: %v", told)
		}
	})
}
