package metamanager_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/tests/smalldisk"
)

// The test binary is its own child, for a mount namespace of its own.
func TestMain(m *testing.M) {
	if smalldisk.Child(map[string]func(string) error{"writes": onSmallDisk(fullDisk), "results": onSmallDisk(resultsOnAFullDisk)}) {
		return
	}
	if dir := os.Getenv("META_TEST_ISLAND"); dir != "" {
		if err := island(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// With a full disk a write is refused with a clear error, cached objects are still served, and
// messages of the cloud are not acknowledged; when there is space again everything resumes without
// intervention.
func TestAFullDiskIsAnErrorThatPasses(t *testing.T) {
	smalldisk.Run(t, "writes")
}

// With a full disk a state that finds no space does not block other messages: results are taken, so
// the outbox drains and later writes go up, and a write that the cloud has put off is put off once.
func TestResultsGoOnWithAFullDisk(t *testing.T) {
	smalldisk.Run(t, "results")
}

// device is an edge on a small disk.
type device struct {
	*edge
	dir   string
	until func(what string, is func() bool) error
}

func onSmallDisk(part func(context.Context, *cloud, *device) error) func(dir string) error {
	return func(dir string) error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		t := &testing.T{}
		c := newCloud(t)
		s, err := store.Open(ctx, store.Config{Path: filepath.Join(dir, "edge.db")})
		if err != nil {
			return err
		}
		defer s.Close()
		m := metamanager.New(metamanager.Config{NodeName: "edge1", Store: s, ReportEvents: true})
		served := make(chan error, 1)
		running, stop := context.WithCancel(ctx)
		defer stop()
		go func() { served <- m.Serve(running, c) }()
		d := &device{&edge{Manager: m, t: t, cloud: c, store: s}, dir, func(what string, is func() bool) error {
			for !is() {
				select {
				case <-ctx.Done():
					return fmt.Errorf("never: %s", what)
				case err := <-served:
					return fmt.Errorf("Run ended: %w", err)
				case <-time.After(time.Millisecond):
				}
			}
			return nil
		}}
		c.set(ref("pods", "default", "a"), pod())
		c.link()
		if err := d.until("the pods are held", func() bool {
			_, _, err := m.List(ctx, ownPods(), metamanager.ListOptions{FromReflector: true})
			return err == nil
		}); err != nil {
			return err
		}
		if err := part(ctx, c, d); err != nil {
			return err
		}
		stop()
		return <-served
	}
}

// fill leaves no room on the disk, until empty is called.
func (d *device) fill() (empty func() error, err error) {
	filler, err := os.Create(filepath.Join(d.dir, "filler"))
	if err != nil {
		return nil, err
	}
	for err == nil {
		_, err = filler.Write(make([]byte, 4096))
	}
	filler.Close()
	return func() error { return os.Remove(filler.Name()) }, nil
}

func resultsOnAFullDisk(ctx context.Context, c *cloud, d *device) error {
	c.mu.Lock()
	c.hold = true
	c.refuse = func(w *topicpb.Write) *metav1.Status {
		if w.Name != "above-a-quota" && !strings.Contains(string(w.Body), "above-a-quota") {
			return nil
		}
		return &metav1.Status{Code: 429, Reason: metav1.StatusReasonTooManyRequests, Details: &metav1.StatusDetails{
			Kind: topic.QuotaKind, Name: "relay.quotas.eventsPerSecond", RetryAfterSeconds: 60,
		}}
	}
	c.mu.Unlock()
	const events = 20
	for n := range events {
		if err := d.event(fmt.Sprint(n), 1); err != nil {
			return err
		}
	}
	if err := errors.Join(d.event("above-a-quota", 1), d.patchStatus("a", "one")); err != nil {
		return err
	}
	if err := d.until("all is under way", func() bool { return d.Status().Outbox.InFlight == events+2 }); err != nil {
		return err
	}
	empty, err := d.fill()
	if err != nil {
		return err
	}
	big := ref("configmaps", "default", "big")
	c.set(big, configMap(strings.Repeat("x", 200_000)))
	c.set(ref("pods", "default", "b"), pod(uses("big")))
	if err := d.until("a change could not be kept", func() bool { return d.Status().Failed > 0 }); err != nil {
		return err
	}
	c.release()
	left := func() int {
		n := 0
		for _, some := range d.Status().Outbox.Waiting {
			n += some
		}
		return n
	}
	failed := d.Status().Failed
	if err := d.until("the state is tried again", func() bool { return d.Status().Failed > failed+3 }); err != nil {
		return err
	}
	var errs []error
	if n := left(); n != 1 {
		errs = append(errs, fmt.Errorf("%d writes wait, want the one that was put off", n))
	}
	if q := d.Status().Outbox.Quota; q == nil || q.Times != 1 {
		errs = append(errs, fmt.Errorf("put off: %+v, want once", q))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := d.patchStatus("a", "two"); err != nil {
		return err
	}
	if err := d.until("the next status is accepted", func() bool { return left() == 1 }); err != nil {
		return err
	}
	c.mu.Lock()
	seen := c.effects[ref("pods", "default", "a").String()]
	c.mu.Unlock()
	if !slices.Equal(seen, []string{"one", "two"}) {
		return fmt.Errorf("the cloud has seen %q of the pod", seen)
	}
	if _, err := d.Get(ctx, big, metamanager.Caller{Kubelet: true}); err == nil {
		return errors.New("there was room for the state after all")
	}
	if err := empty(); err != nil {
		return err
	}
	return d.until("the state is held", func() bool {
		_, err := d.Get(ctx, big, metamanager.Caller{Kubelet: true})
		return err == nil
	})
}

func fullDisk(ctx context.Context, c *cloud, d *device) error {
	empty, err := d.fill()
	if err != nil {
		return err
	}
	// Small writes find room in the file for a while.
	n := 0
	for err = nil; err == nil && n < 2000; n++ {
		err = d.event(fmt.Sprint(n), 1)
	}
	status, ok := err.(apierrors.APIStatus)
	if !ok || status.Status().Code != 507 || !strings.Contains(err.Error(), "full") {
		return fmt.Errorf("event %d on a full disk: %v", n, err)
	}
	if _, err := d.Get(ctx, ref("pods", "default", "a"), metamanager.Caller{Kubelet: true}); err != nil {
		return fmt.Errorf("reading on a full disk: %w", err)
	}
	big := configMap(strings.Repeat("x", 200_000))
	c.set(ref("configmaps", "default", "big"), big)
	c.set(ref("pods", "default", "b"), pod(uses("big")))
	if err := d.until("a change could not be kept", func() bool { return d.Status().Failed > 1 }); err != nil {
		return err
	}
	if _, err := d.Get(ctx, ref("configmaps", "default", "big"), metamanager.Caller{Kubelet: true}); err == nil {
		return fmt.Errorf("shown, and not on the disk")
	}

	if err := empty(); err != nil {
		return err
	}
	if err := d.until("the pod that came meanwhile is held", func() bool {
		_, err := d.Get(ctx, ref("configmaps", "default", "big"), metamanager.Caller{Kubelet: true})
		return err == nil
	}); err != nil {
		return err
	}
	if err := d.event("afterwards", 1); err != nil {
		return err
	}
	return d.until("the outbox is empty", func() bool { return len(d.Status().Outbox.Waiting) == 0 })
}
