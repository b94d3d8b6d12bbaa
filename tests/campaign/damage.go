package campaign

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/tests/campaign/history"
	"github.com/skerry-io/skerry/tests/campaign/line"
)

// DamageInUse runs a campaign with one fault: pages of the first edge's store break while edgecore
// uses it and has no link. The error names the step at which edgecore failed: to notice, to
// continue from memory without a link, to open a session when there is one again, to end then, and
// to start with the intact part of the file.
func DamageInUse(ctx context.Context, o Options) (Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := start(ctx, o)
	if s != nil {
		defer s.stop()
	}
	if err != nil {
		return Result{}, err
	}
	work, quiet := context.WithCancel(ctx)
	defer quiet()
	var clients, viewers sync.WaitGroup
	viewers.Go(func() { s.watchCloud(ctx) })
	for _, e := range s.edges {
		k := s.newKubelet(e)
		viewers.Go(func() { k.run(ctx, work) })
	}
	if err = s.awaitEdges(ctx); err == nil {
		for _, e := range s.edges {
			for n := range o.Pods {
				slot := newSlot(s, e.name, n)
				clients.Go(func() { slot.run(work) })
			}
		}
		err = s.damageInUse(ctx, s.edges[0])
		pause(ctx, 10*time.Second) // clients and devices work on
	}
	quiet()
	clients.Wait()
	var result Result
	if err == nil {
		result, err = s.settle(ctx)
	}
	cancel()
	viewers.Wait()
	if err != nil {
		return result, err
	}
	return result, s.keep(result)
}

func (s *system) damageInUse(ctx context.Context, e *edge) error {
	if err := await(ctx, e.name+" to have a pod", func(ctx context.Context) error {
		have, err := e.pods(ctx)
		if err == nil && len(have) == 0 {
			err = errors.New("it has none")
		}
		return err
	}); err != nil {
		return err
	}
	old := e.running()
	e.line.Set(line.State{Cut: true})
	if err := s.fillOutbox(ctx, e); err != nil {
		return err
	}
	over := s.excuse(history.Damage, e.name)
	if err := breakPages(e.store, e.name+"-"); err != nil {
		return err
	}
	if err := await(ctx, "the damage to be noticed", e.logs("Store is damaged, running from memory")); err != nil {
		return err
	}
	pause(ctx, 8*time.Second) // it looks every 5 s whether it is time to start again
	if _, err := e.pods(ctx); err != nil || !old.Alive() {
		return fmt.Errorf("edgecore did not go on from memory: alive %v, %w", old.Alive(), err)
	}
	sessions := e.count(sessionOpened)
	e.line.Set(line.State{})
	select {
	case <-old.Done():
	case <-time.After(startPatience):
		return errors.New("edgecore did not end once it had a link again")
	}
	if e.count(sessionOpened) == sessions {
		return errors.New("edgecore ended without a session that a damaged store let it open")
	}
	if err := e.start(ctx); err != nil { // as an init system does
		return err
	}
	over()
	if aside, err := filepath.Glob(e.store + ".damaged-*"); err != nil || len(aside) != 1 {
		return fmt.Errorf("the damaged store was not set aside: %v, %w", aside, err)
	}
	return await(ctx, e.name+" to have its pods again", func(ctx context.Context) error {
		_, err := e.pods(ctx)
		return err
	})
}

// fillOutbox makes more events than fit into one page of the store together with other records.
func (s *system) fillOutbox(ctx context.Context, e *edge) error {
	for n := range 20 {
		name := fmt.Sprintf("%s-0.filler%d", e.name, n)
		_, err := e.client.CoreV1().Events(namespace).Create(ctx, &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: name, Namespace: namespace},
			InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: e.name + "-0"},
			Reason:         "Filler", Message: strings.Repeat("x", 500), Count: 1, Source: corev1.EventSource{Component: "kubelet", Host: e.name},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("making events at %s: %w", e.name, err)
		}
	}
	return nil
}

// breakPages makes all pages of a bbolt file that hold a text, but for the two at its begin, such
// that they can't be read as pages any more. An edgecore that has the file open sees it at once.
func breakPages(file, text string) error {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("opening a store: %w", err)
	}
	defer f.Close()
	page := int64(os.Getpagesize())
	b := make([]byte, page)
	broken := 0
	for at := 2 * page; ; at += page {
		if _, err := f.ReadAt(b, at); err != nil {
			break
		}
		if !bytes.Contains(b, []byte(text)) {
			continue
		}
		if _, err := f.WriteAt([]byte{^b[8], ^b[9]}, at+8); err != nil { // the page's kind
			return fmt.Errorf("damaging a store: %w", err)
		}
		broken++
	}
	if broken == 0 {
		return fmt.Errorf("no page of %s holds %q", file, text)
	}
	return f.Close()
}

func (e *edge) logs(text string) func(context.Context) error {
	return func(context.Context) error {
		if e.count(text) == 0 {
			return fmt.Errorf("the log of %s does not say %q", e.name, text)
		}
		return nil
	}
}
