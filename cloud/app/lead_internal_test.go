package app

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/skerry-io/skerry/cloud/internal/trust/join"
)

// A replica releases its Lease when its work has ended, and not before: another one would begin
// next to it.
func TestLeadEndsBeforeItGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		holder := func() string {
			l, err := client.CoordinationV1().Leases(join.Namespace).Get(t.Context(), "work", metav1.GetOptions{})
			if err != nil || l.Spec.HolderIdentity == nil {
				t.Fatal(l, err)
			}
			return *l.Spec.HolderIdentity
		}
		ctx, cancel := context.WithCancel(t.Context())
		begun, end, led := false, make(chan struct{}), make(chan error, 1)
		go func() {
			led <- lead(ctx, client, "work", "a", func(ctx context.Context) error {
				begun = true
				<-ctx.Done()
				<-end // work in progress takes a while
				return nil
			})
		}()
		time.Sleep(5 * time.Second)
		if !begun || holder() != "a" {
			t.Fatalf("begun: %v, the holder is %q", begun, holder())
		}
		cancel()
		time.Sleep(5 * time.Second)
		if len(led) > 0 || holder() != "a" {
			t.Errorf("while the work ends: lead has returned: %v, the holder is %q", len(led) > 0, holder())
		}
		close(end)
		synctest.Wait()
		if len(led) == 0 || holder() != "" {
			t.Errorf("when the work has ended: lead has returned: %v, the holder is %q", len(led) > 0, holder())
		} else if err := <-led; err != nil {
			t.Error(err)
		}
	})
}

// A replica that can't renew its Lease ends its work, returns an error, and leaves the Lease to its
// new holder.
func TestLeadLoses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		leases := client.CoordinationV1().Leases(join.Namespace)
		var taken atomic.Bool // the fake has no conflicts
		client.PrependReactor("update", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
			return taken.Load(), nil, apierrors.NewConflict(action.GetResource().GroupResource(), "work", errors.New("of another version"))
		})
		ended, led := false, make(chan error, 1)
		go func() {
			led <- lead(t.Context(), client, "work", "a", func(ctx context.Context) error {
				<-ctx.Done()
				ended = true
				return nil
			})
		}()
		time.Sleep(time.Second)
		l, err := leases.Get(t.Context(), "work", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		other, now := "b", metav1.NowMicro()
		l.Spec.HolderIdentity, l.Spec.RenewTime, l.Spec.AcquireTime = &other, &now, &now
		if _, err := leases.Update(t.Context(), l, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		taken.Store(true)
		time.Sleep(time.Minute)
		if len(led) == 0 || !ended {
			t.Fatalf("it goes on without its Lease; its work has ended: %v", ended)
		}
		if err := <-led; err == nil || !strings.Contains(err.Error(), "another replica holds the Lease work") {
			t.Errorf("it says %v", err)
		}
		if l, err = leases.Get(t.Context(), "work", metav1.GetOptions{}); err != nil || *l.Spec.HolderIdentity != "b" {
			t.Errorf("the Lease is %v, %v", l, err)
		}
	})
}

func TestLeadFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		broken := errors.New("broken")
		err := lead(t.Context(), client, "work", "a", func(context.Context) error { return broken })
		if !errors.Is(err, broken) {
			t.Errorf("it says %v", err)
		}
		l, err := client.CoordinationV1().Leases(join.Namespace).Get(t.Context(), "work", metav1.GetOptions{})
		if err != nil || *l.Spec.HolderIdentity != "" {
			t.Errorf("the Lease is %v, %v", l, err)
		}
	})
}
