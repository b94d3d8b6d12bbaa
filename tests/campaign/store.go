package campaign

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/campaign/history"
	"github.com/skerry-io/skerry/tests/campaign/line"
)

// badRecord damages a record of an event in a device's store while the device is off, and starts it
// without a link. It must have its pods then.
func (s *system) badRecord(ctx context.Context, e *edge, after time.Duration) error {
	over := s.excuse(history.Damage, e.name)
	e.line.Set(line.State{Cut: true})
	defer e.line.Set(line.State{})
	pause(ctx, 500*time.Millisecond) // received data is stored
	before, err := e.pods(ctx)
	known := err == nil // it may be in another trouble
	if err := e.kill(ctx); err != nil {
		return err
	}
	if err := flipIn(e.store, "Campaign"); err != nil {
		return err
	}
	pause(ctx, after)
	if err := e.start(ctx); err != nil {
		return err
	}
	if known {
		s.compare(ctx, e, before)
	}
	over()
	return nil
}

// compare records which pods a device has no longer.
func (s *system) compare(ctx context.Context, e *edge, before []corev1.Pod) {
	var now []corev1.Pod
	err := errors.New("not asked")
	for end := time.Now().Add(requestPatience); err != nil && time.Now().Before(end); pause(ctx, 300*time.Millisecond) {
		now, err = e.pods(ctx)
	}
	if ctx.Err() != nil {
		return
	}
	for _, p := range before {
		there := p.DeletionTimestamp != nil // it may have ended in the meantime
		for _, q := range now {
			there = there || q.UID == p.UID
		}
		if !there {
			s.recorder.Add(history.Record{Kind: history.Missing, Who: e.name, Resource: "pods", Name: namespace + "/" + p.Name, UID: string(p.UID), Node: e.name})
		}
	}
}

func (e *edge) pods(ctx context.Context) ([]corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, requestPatience)
	defer cancel()
	list, err := e.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + e.name})
	if err != nil {
		return nil, fmt.Errorf("listing the pods of %s: %w", e.name, err)
	}
	return list.Items, nil
}

// flipIn flips one bit in each place of a file that contains text.
func flipIn(file, text string) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("reading a store: %w", err)
	}
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("opening a store: %w", err)
	}
	defer f.Close()
	for at := 0; ; {
		n := bytes.Index(raw[at:], []byte(text))
		if n < 0 {
			return f.Close()
		}
		at += n
		if _, err := f.WriteAt([]byte{raw[at] ^ 1<<rand.IntN(8)}, int64(at)); err != nil {
			return fmt.Errorf("damaging a store: %w", err)
		}
		at += len(text)
	}
}

// fill takes all room of an edge's disk for a time.
func fill(ctx context.Context, e *edge, length time.Duration) error {
	file := filepath.Join(e.disk, "filler")
	f, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("filling a disk: %w", err)
	}
	block := make([]byte, 1<<20)
	for len(block) > 0 { // to the last byte
		if _, err := f.Write(block); err != nil {
			block = block[:len(block)/2]
		}
	}
	pause(ctx, length)
	return errors.Join(f.Close(), os.Remove(file))
}
