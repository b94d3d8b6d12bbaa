package meta_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/skerry-io/skerry/edge/internal/meta"
	"github.com/skerry-io/skerry/edge/internal/store"
	"github.com/skerry-io/skerry/tests/smalldisk"
)

// The test binary is its own child, for a mount namespace of its own.
func TestMain(m *testing.M) {
	if smalldisk.Child(map[string]func(string) error{"writes": fullDisk}) {
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

// On a full disk a write is refused with a clear error, what is held is still served, what the
// cloud sends is not acknowledged; when there is room again everything goes on by itself.
func TestAFullDiskIsAnErrorThatPasses(t *testing.T) {
	smalldisk.Run(t, "writes")
}

func fullDisk(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	t := &testing.T{}
	c := newCloud(t)
	s, err := store.Open(ctx, store.Config{Path: filepath.Join(dir, "edge.db")})
	if err != nil {
		return err
	}
	defer s.Close()
	m := meta.New(meta.Config{NodeName: "edge1", Store: s, ReportEvents: true})
	served := make(chan error, 1)
	running, stop := context.WithCancel(ctx)
	defer stop()
	go func() { served <- m.Serve(running, c) }()
	e := &edge{Manager: m, t: t, cloud: c, store: s}
	until := func(what string, is func() bool) error {
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
	}
	c.set(ref("pods", "default", "a"), pod())
	c.link()
	if err := until("the pods are held", func() bool {
		_, _, err := m.List(ctx, ownPods(), meta.ListOptions{FromReflector: true})
		return err == nil
	}); err != nil {
		return err
	}

	filler, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		return err
	}
	for err == nil {
		_, err = filler.Write(make([]byte, 4096))
	}
	filler.Close()

	// Small writes find room in the file for a while.
	n := 0
	for err = nil; err == nil && n < 2000; n++ {
		err = e.event(fmt.Sprint(n), 1)
	}
	status, ok := err.(apierrors.APIStatus)
	if !ok || status.Status().Code != 507 || !strings.Contains(err.Error(), "full") {
		return fmt.Errorf("event %d on a full disk: %v", n, err)
	}
	if _, err := m.Get(ctx, ref("pods", "default", "a"), meta.Caller{Kubelet: true}); err != nil {
		return fmt.Errorf("reading on a full disk: %w", err)
	}
	big := configMap(strings.Repeat("x", 200_000))
	c.set(ref("configmaps", "default", "big"), big)
	c.set(ref("pods", "default", "b"), pod(uses("big")))
	if err := until("a change could not be kept", func() bool { return m.Status().Failed > 1 }); err != nil {
		return err
	}
	if _, err := m.Get(ctx, ref("configmaps", "default", "big"), meta.Caller{Kubelet: true}); err == nil {
		return fmt.Errorf("shown, and not on the disk")
	}

	if err := os.Remove(filler.Name()); err != nil {
		return err
	}
	if err := until("the pod that came meanwhile is held", func() bool {
		_, err := m.Get(ctx, ref("configmaps", "default", "big"), meta.Caller{Kubelet: true})
		return err == nil
	}); err != nil {
		return err
	}
	if err := e.event("afterwards", 1); err != nil {
		return err
	}
	if err := until("the outbox is empty", func() bool { return len(m.Status().Outbox.Waiting) == 0 }); err != nil {
		return err
	}
	stop()
	return <-served
}
