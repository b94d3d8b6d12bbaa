package edgeapi

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// A Recorder is the event bridge: an ordinary client-go recorder whose events become events of this
// node. The metamanager decides whether they are only kept here or also reported, as for the
// kubelet's own.
type Recorder struct {
	record.EventRecorder
	broadcaster record.EventBroadcaster
	last        corev1.ObjectReference
	flushed     chan struct{}
	close       sync.Once
}

// StartRecorder starts a recorder for a component of edgecore. Close ends it; ctx is for its
// logger only.
func (s *Server) StartRecorder(ctx context.Context, component string) (*Recorder, error) {
	client, err := typedcorev1.NewForConfig(s.ClientConfig(Identity{}))
	if err != nil {
		return nil, fmt.Errorf("making the event recorder of %s: %w", component, err)
	}
	r := &Recorder{
		broadcaster: record.NewBroadcaster(record.WithContext(context.WithoutCancel(ctx))),
		last: corev1.ObjectReference{
			Kind: "Recorder", Namespace: metav1.NamespaceDefault, Name: component, UID: types.UID("last event of " + component),
		},
		flushed: make(chan struct{}),
	}
	r.broadcaster.StartRecordingToSink(&sink{EventSink: &typedcorev1.EventSinkImpl{Interface: client.Events("")}, recorder: r})
	r.EventRecorder = r.broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component, Host: s.config.NodeName})
	return r, nil
}

// Close waits until the recorded events are written, or ctx ends. Events recorded later are
// dropped.
func (r *Recorder) Close(ctx context.Context) error {
	var err error
	r.close.Do(func() {
		// The broadcaster doesn't report whether its queue is empty. The queue keeps the order, so
		// this event, which is discarded, is the last one out.
		r.Event(&r.last, corev1.EventTypeNormal, "Closing", "the last event")
		select {
		case <-r.flushed:
		case <-ctx.Done():
			err = fmt.Errorf("writing the last events of %s: %w", r.last.Name, context.Cause(ctx))
		}
		r.broadcaster.Shutdown()
	})
	return err
}

// sink takes the last event out of the stream.
type sink struct {
	record.EventSink
	recorder *Recorder
}

func (s *sink) Create(e *corev1.Event) (*corev1.Event, error) {
	if e.InvolvedObject.UID == s.recorder.last.UID {
		close(s.recorder.flushed)
		return e, nil
	}
	return s.EventSink.Create(e)
}
