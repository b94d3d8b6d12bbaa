package agent

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/rerun"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
)

// Recorder records events; the edge API's recorder.
type Recorder interface {
	record.EventRecorder
	// Close waits until the recorded events are written, or ctx ends.
	Close(ctx context.Context) error
}

// closeTimeout is for the last events of a run.
const closeTimeout = 2 * time.Second

// Sync reconciles the device with the objects, and is idempotent. It returns after which time it
// must be called again without a change; 0: after Config.Resync. An error is logged once until it
// changes, and Sync is called again after a delay that doubles from RetryMin to RetryMax.
type Sync func(ctx context.Context) (again time.Duration, err error)

// Run is one run of an agent. A module that failed is started again with a new one.
type Run struct {
	// Reports are the entries of this node in the status of objects. Sync's goroutine owns them.
	Reports *Reports
	// Go runs f concurrently with Sync. It ends with the run; an error ends the run.
	Go func(f func(ctx context.Context) error)

	name     message.Name // the module's
	note     func(text string)
	node     string
	api      *rest.Config
	port     *beehive.Port
	recorder record.EventRecorder // nil without one
	watches  []source
	cleanups []func()
	loop     *rerun.Loop
	sync     Sync // result of Start

	forgotten atomic.Bool // see Repeated

	mu   sync.Mutex
	link linkstate.State
}

// source is a watch whatever its type.
type source interface {
	run(ctx context.Context) error
	// missing names the missing information; "" if it is complete.
	missing() string
}

// missing is the first watch that has not synced; "" where all have.
func (r *Run) missing() string {
	for _, w := range r.watches {
		if text := w.missing(); text != "" {
			return text
		}
	}
	return ""
}

// Cleanup calls f when everything else of the run has ended. The last one is called first.
func (r *Run) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

// Wake asks for a call of Sync.
func (r *Run) Wake() { r.loop.Wake() }

// Link is the present state of the link. It is right from the first call of Start on, also in a
// module that was started again in the middle of a session. A change wakes Sync.
func (r *Run) Link() linkstate.State {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.link
}

// Ask sends a request to another module and waits for its answer. A refusal is an error.
func (r *Run) Ask(ctx context.Context, to message.Name, m message.Message) (message.Message, error) {
	return r.port.SendSync(ctx, to, m)
}

// Event records an event about this node: a node may write events about itself and its pods only.
func (r *Run) Event(eventType, reason, format string, args ...any) {
	if r.recorder == nil {
		return
	}
	about := &corev1.ObjectReference{Kind: "Node", Name: r.node, UID: types.UID(r.node)}
	r.recorder.Eventf(about, eventType, reason, format, args...)
}

// Recorder records events about any object; nil for an agent without one.
func (r *Run) Recorder() record.EventRecorder { return r.recorder }

// Note sets a text in State for a user who inspects the device; "" removes it.
func (r *Run) Note(text string) { r.note(text) }

func closeRecorder(ctx context.Context, recorder Recorder) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := recorder.Close(ctx); err != nil {
		klog.FromContext(ctx).V(2).Info("Failed to write the last events", "err", err)
	}
}

// takeRetained takes the bus's retained messages for this module, so that the first Sync knows the
// state of the link.
func (r *Run) takeRetained(ctx context.Context) error {
	ended, cancel := context.WithCancel(ctx)
	cancel() // Receive then returns the queued messages without waiting
	for {
		m, err := r.port.Receive(ended)
		if err != nil {
			return ctx.Err()
		}
		if err := r.handle(ctx, m); err != nil {
			return err
		}
	}
}

func (r *Run) receive(ctx context.Context) error {
	for {
		m, err := r.port.Receive(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if err := r.handle(ctx, m); err != nil {
			return err
		}
	}
}

func (r *Run) handle(ctx context.Context, m message.Message) error {
	if m.Key() != linkstate.Current.Key() {
		if m.Header.Sync {
			return r.port.Reply(ctx, m, fmt.Errorf("%s has no answer to %s", r.name, m.Key()))
		}
		return nil // of a group that the module has joined
	}
	state, err := linkstate.Current.Content(m)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.link = state
	r.mu.Unlock()
	r.Wake()
	return nil
}
