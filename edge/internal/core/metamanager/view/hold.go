package view

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager/reply"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/request"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// pins reports whether a set must be kept even if no client watches it: the kubelet needs its
// node-wide watches after a reboot without a link, also if it did not run for a while before.
func (v *View) pins(s object.Selection, caller request.Caller) bool {
	name := s.Name()
	return caller.Kubelet && (name == "" || name == v.config.Node)
}

// hold makes sure that the selection is wanted and waits until it can be answered. use, where it
// can, is called with the lock held: for writing, so that it may register itself with the view.
func (v *View) hold(ctx context.Context, s object.Selection, caller request.Caller, use func(*Interest) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, v.config.Limits.SyncWait, errNotSynced)
	defer cancel()
	for {
		v.mu.Lock()
		if !v.running {
			v.mu.Unlock()
			return reply.From(reply.ErrStopped)
		}
		if v.answerable(s) {
			i := v.covering(s)
			if i != nil {
				i.idle = 0
			}
			err := use(i)
			v.mu.Unlock()
			return err
		}
		i := v.covering(s)
		if i != nil && i.refused != nil {
			refused := *i.refused
			i.idle = 0
			v.mu.Unlock()
			return &apierrors.StatusError{ErrStatus: refused}
		}
		var wake chan struct{}
		if i != nil {
			wake, i.idle = i.wake, 0
		}
		linked := v.linked
		v.mu.Unlock()
		if i == nil {
			if err := v.config.Want(ctx, s, v.pins(s, caller)); err != nil {
				return v.notYet(s, linked, err)
			}
			continue
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return v.notYet(s, linked, context.Cause(ctx))
		}
	}
}

var errNotSynced = errors.New("the set has not arrived yet")

func (v *View) notYet(s object.Selection, linked bool, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errNotSynced) {
		if !linked {
			return reply.Offline("this node has never held " + s.String())
		}
		return reply.Unavailable("this node does not hold "+s.String()+" yet", 1)
	}
	return reply.From(err)
}
