// Package controller is the frame of cloudcore's controllers: loops that keep objects at
// kube-apiserver as other objects require.
//
// It owns the parts that every controller needs: typed watches on the copies that all of cloudcore
// shares (Watch, Mirror), reads and writes of objects (Kind), events, the queue, delays after
// failures, and the class of an error (ClassOf). It refuses to reconcile before all watches of a
// controller have synced, and to run a controller's work twice at a time for one key. The plan is
// the controller's: a pure function from objects to changes. Which replica runs is the caller's
// decision: cloud/app calls Manager.Run while it holds the leader Lease.
//
// Config.Start is called at the start of each run. It opens watches and returns either a level loop
// (Level), whose function reads everything at every change, or a keyed one (Keyed), whose function
// gets the key of one object. Changes are not queued: a key is in the queue once, and reconciling
// reads the present state. The queue is bounded by the number of objects. Handlers of changes
// (Changed) run under the store's lock: they must be quick and must not read a Collection. All
// methods of Run, Kind and Collection may be called by many goroutines.
package controller

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// Manager runs controllers. They share its clients, the copies of collections, and one recorder of
// events.
type Manager struct {
	client      Client
	collections Collections
	recorder    record.EventRecorder // nil: Run makes one
}

// NewManager makes a Manager.
func NewManager(client Client, collections Collections) *Manager {
	return &Manager{client: client, collections: collections}
}

// RecordTo has events recorded by another recorder than that of cloudcore: for tests.
func (m *Manager) RecordTo(recorder record.EventRecorder) { m.recorder = recorder }

// Run runs controllers until ctx ends or one of them can't start.
func (m *Manager) Run(ctx context.Context, controllers ...Config) error {
	recorder := m.recorder
	if recorder == nil {
		events := record.NewBroadcaster(record.WithContext(ctx))
		events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: m.client.Kubernetes().CoreV1().Events(metav1.NamespaceAll)})
		defer events.Shutdown()
		recorder = events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "cloudcore"})
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, c := range controllers {
		g.Go(func() error {
			if err := newRun(m.client, m.collections, recorder, c).run(ctx); err != nil {
				return fmt.Errorf("controller %s: %w", c.Name, err)
			}
			return nil
		})
	}
	return g.Wait()
}
