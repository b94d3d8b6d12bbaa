package singleton_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/podgate"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/pods/singleton"
)

// device keeps the store over processes and boots, and shows pods as metamanager does.
type device struct {
	mu       sync.Mutex
	kept     map[string][]byte
	full     bool
	gate     *singleton.Gate
	withheld bool
}

func (d *device) Load() (map[string][]byte, error) { return maps.Clone(d.kept), nil }

func (d *device) Save(_ context.Context, changes map[string][]byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.full {
		return errors.New("no space left")
	}
	maps.Copy(d.kept, changes)
	return nil
}

func (d *device) Withheld() []podgate.Withheld {
	d.mu.Lock()
	defer d.mu.Unlock()
	other := podgate.Withheld{Namespace: "ns", Name: "another", Reason: "another rule"}
	if !d.withheld {
		return []podgate.Withheld{other}
	}
	return []podgate.Withheld{other, {Namespace: "ns", Name: "single", Reason: singleton.Reason}}
}

func (d *device) Recorrect(_ context.Context, refs ...object.Ref) error {
	for _, ref := range refs {
		if ref.Name != "single" {
			return fmt.Errorf("%s is no business of this gate", ref)
		}
	}
	d.look()
	return nil
}

func held() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "single", Annotations: map[string]string{v1alpha1.EdgeAppHeldAtBoot: "true"}}}
}

// look has the pod shown or withheld.
func (d *device) look() {
	reason := d.gate.Rule(held())
	d.mu.Lock()
	d.withheld = reason != ""
	d.mu.Unlock()
}

// start begins a process, in a boot, and returns whether the pod is shown at once.
func (d *device) start(t *testing.T, boot string) (shown bool, stop func()) {
	t.Helper()
	d.gate = singleton.New(func() singleton.Manager { return d }, d, boot)
	if err := d.gate.Load(); err != nil {
		t.Fatal(err)
	}
	d.look()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.gate.Serve(ctx) }()
	synctest.Wait()
	return d.shown(), func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func (d *device) shown() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.withheld
}

// A singleton starts after a boot once the cloud has confirmed it; within a boot it runs without a
// link, over restarts of edgecore too.
func TestClaims_34_SingletonWaitsForTheCloudAfterABoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &device{kept: map[string][]byte{}}
		expect := func(what string, got, want bool) {
			t.Helper()
			if got != want {
				t.Errorf("%s: shown %v, want %v", what, got, want)
			}
		}
		shown, stop := d.start(t, "boot-1")
		expect("booted without a link", shown, false)
		time.Sleep(time.Hour)
		expect("an hour later", d.shown(), false)
		d.gate.Confirmed()
		synctest.Wait()
		expect("the cloud has confirmed it", d.shown(), true)
		stop()
		shown, stop = d.start(t, "boot-1")
		expect("edgecore started again without a link", shown, true)
		stop()
		shown, stop = d.start(t, "boot-2")
		expect("booted again without a link", shown, false)
		stop()
		shown, stop = d.start(t, "")
		expect("a boot that can't be told", shown, false)
		stop()
	})
}

// A full disk delays the record, not the start.
func TestClaims_34_FullDiskHoldsNoSingleton(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &device{kept: map[string][]byte{}, full: true}
		_, stop := d.start(t, "boot-1")
		d.gate.Confirmed()
		synctest.Wait()
		if !d.shown() {
			t.Error("it is withheld although the cloud has confirmed it")
		}
		d.mu.Lock()
		d.full = false
		d.mu.Unlock()
		time.Sleep(time.Minute)
		stop()
		if shown, stop := d.start(t, "boot-1"); !shown {
			t.Error("what the disk had no room for is not kept later")
		} else {
			stop()
		}
	})
}

// There is no write on a device without singletons, and other pods start at once.
func TestClaims_34_OthersStartAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &device{kept: map[string][]byte{}}
		g := singleton.New(func() singleton.Manager { return d }, d, "boot-1")
		if why := g.Rule(&corev1.Pod{}); why != "" {
			t.Errorf("withheld: %s", why)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- g.Serve(ctx) }()
		g.Confirmed()
		synctest.Wait()
		if len(d.kept) > 0 {
			t.Errorf("written: %v", d.kept)
		}
		cancel()
		<-done
	})
}
