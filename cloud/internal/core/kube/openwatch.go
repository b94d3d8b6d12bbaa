package kube

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/watch"
)

// openWatch opens a watch; one that is not open in time is given up. Stopping it releases
// all it holds.
func openWatch(ctx context.Context, open func(context.Context) (watch.Interface, error)) (watch.Interface, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(openTimeout, func() { cancel(errors.New("kube-apiserver did not open the watch in time")) })
	w, err := open(ctx)
	late.Stop()
	if err == nil && ctx.Err() != nil {
		w.Stop()
		err = context.Cause(ctx)
	}
	if err != nil {
		cancel(nil)
		return nil, err
	}
	return &opened{w, cancel}, nil
}

type opened struct {
	watch.Interface
	cancel context.CancelCauseFunc
}

func (o *opened) Stop() {
	o.Interface.Stop()
	o.cancel(nil)
}
