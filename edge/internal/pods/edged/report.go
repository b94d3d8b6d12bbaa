package edged

import (
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/edge/internal/core/agent"
)

const (
	// maxNotes bounds the notes; the oldest are dropped.
	maxNotes = 8
	// reportTimeout bounds the writing of an event into this device's store.
	reportTimeout = 5 * time.Second
)

// notes are what a Module had to do since its start for the kubelet to run. It may be used by many
// goroutines.
type notes struct {
	node   string
	events func(ctx context.Context) (agent.Recorder, error) // nil: no events

	mu  sync.Mutex
	all []string
}

// add notes a text with the time, and makes an event of the Node.
func (n *notes) add(ctx context.Context, reason, text string) {
	n.mu.Lock()
	n.all = append(n.all, time.Now().UTC().Format(time.RFC3339)+": "+text)
	n.all = n.all[max(0, len(n.all)-maxNotes):]
	n.mu.Unlock()
	if n.events == nil {
		return
	}
	recorder, err := n.events(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to make an event: only edgecore status shows it", "reason", reason)
		return
	}
	recorder.Event(&corev1.ObjectReference{Kind: "Node", Name: n.node, UID: types.UID(n.node)}, corev1.EventTypeWarning, reason, text)
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	_ = recorder.Close(ctx) // an event that can't be written is in the log
}

func (n *notes) list() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.all)
}
