package node_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/skerry-io/skerry/edge/internal/agents/node"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// device is a Registration's Backend.
type device struct {
	events chan metamanager.Event

	mu      sync.Mutex
	linked  bool
	held    bool
	written []string
	refuses string // a field that writes must not have; "": accepts all
}

func (d *device) Watch(context.Context, object.Selection, metamanager.WatchOptions) (metamanager.Watch, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.held {
		return nil, errors.New("not held")
	}
	return d, nil
}
func (d *device) Events() <-chan metamanager.Event { return d.events }
func (d *device) Stop()                            {}

func (d *device) Write(_ context.Context, w metamanager.Write) (metamanager.Result, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.linked {
		return metamanager.Result{}, apierrors.NewServiceUnavailable("no link")
	}
	if d.refuses != "" && strings.Contains(string(w.Body), d.refuses) {
		return metamanager.Result{Code: http.StatusForbidden}, nil
	}
	d.written = append(d.written, string(w.Body))
	return metamanager.Result{Code: 201}, nil
}

func (d *device) set(do func()) {
	d.mu.Lock()
	do()
	d.mu.Unlock()
	synctest.Wait()
}

func (d *device) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.written)
}

// memory is a Memory in memory.
type memory map[string][]byte

func (m memory) Load() (map[string][]byte, error) { return m, nil }
func (m memory) Save(_ context.Context, changes map[string][]byte) error {
	maps.Copy(m, changes)
	return nil
}

func TestRegistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &device{events: make(chan metamanager.Event)}
		replaced, uid := 0, 1
		k := node.NewRegistration(d, "edge1", memory{}, func() { replaced++ })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- k.Keep(ctx) }()
		see := func(e watch.EventType) {
			d.events <- metamanager.Event{Type: e, Object: object.Object{UID: types.UID(fmt.Sprint(uid))}}
			synctest.Wait()
			if e == watch.Deleted {
				uid++
			}
			if replaced != uid-1 && e != watch.Deleted {
				t.Errorf("the Node was replaced %d times, it was heard of %d", uid-1, replaced)
			}
		}
		time.Sleep(time.Minute) // the kubelet starts late
		d.set(func() { d.held, d.linked = true, true })
		time.Sleep(time.Minute)
		see(watch.Added)
		see(watch.Deleted)
		time.Sleep(time.Minute)
		if d.count() != 0 {
			t.Error("registered what the kubelet never said")
		}
		d.set(func() { d.linked = false }) // it exists: the kubelet gets that answer
		if _, err := k.Register(ctx, metamanager.Write{Verb: "create", Body: []byte("as the kubelet said it")}); err == nil {
			t.Error("it was written without a link")
		}
		d.set(func() { d.linked = true })
		see(watch.Added)
		see(watch.Modified)
		time.Sleep(time.Hour)
		if d.count() != 0 {
			t.Error("registered a Node that is there")
		}
		see(watch.Deleted)
		if d.count() != 1 || d.written[0] != "as the kubelet said it" {
			t.Errorf("wrote %q", d.written)
		}
		time.Sleep(time.Hour)
		if d.count() != 1 {
			t.Errorf("registered %d times", d.count())
		}
		see(watch.Added)

		d.set(func() { d.linked = false }) // the link is lost in the same moment
		see(watch.Deleted)
		time.Sleep(time.Hour)
		d.set(func() { d.linked = true })
		time.Sleep(time.Minute)
		if d.count() != 2 {
			t.Errorf("registered %d times, want a second one once linked", d.count())
		}
		see(watch.Added)

		d.set(func() { d.linked = false }) // another client creates it, with the same name
		see(watch.Deleted)
		see(watch.Added)
		d.set(func() { d.linked = true })
		time.Sleep(time.Hour)
		if d.count() != 2 {
			t.Errorf("registered %d times although it was made again", d.count())
		}
		cancel()
		close(d.events)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A Node that is deleted each time it is registered, by a controller that does not want it, is
// registered ever less often, and at once after it had stayed.
func TestClaims_38_NodeThatIsDeletedEachTimeIsNoSpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &device{events: make(chan metamanager.Event), held: true, linked: true}
		k := node.NewRegistration(d, "edge1", memory{}, func() {})
		if _, err := k.Register(t.Context(), metamanager.Write{Verb: "create", Body: []byte("a Node")}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- k.Keep(ctx) }()
		see := func(e watch.EventType) {
			d.events <- metamanager.Event{Type: e, Object: object.Object{UID: "u"}}
			synctest.Wait()
		}
		see(watch.Added)
		see(watch.Deleted)
		deletions := 1
		for end, have := time.Now().Add(10*time.Minute), 1; time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if n := d.count(); n > have {
				have = n
				see(watch.Added)
				see(watch.Deleted)
				deletions++
			}
		}
		if deletions < 10 || deletions > 40 {
			t.Errorf("%d registrations in 10 minutes of a Node that is deleted at once", deletions)
		}
		time.Sleep(time.Minute)
		see(watch.Added)
		time.Sleep(time.Minute)
		before := d.count()
		see(watch.Deleted)
		if d.count() != before+1 {
			t.Error("a Node that had stayed is not registered at once")
		}
		cancel()
		close(d.events)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
