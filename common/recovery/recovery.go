// Package recovery keeps a panic in one callback, request or worker from ending the process:
// edgecore has the kubelet in it, and cloudcore the sessions of all devices.
//
// It owns how a panic is logged and counted, and its result for the caller: ErrPanic. It never
// repairs: the function's state is as it left it, so it stands where a library or a queue calls us
// (a DNS query, a message, a sync), never around code that shares a lock without defer. All may be
// called by any goroutine.
package recovery

import (
	"context"
	"errors"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"
)

// ErrPanic is returned instead of a panic. Its text may go over a link and reveals no internals;
// the log has the rest.
var ErrPanic = errors.New("internal error")

// panics counts for the process: it lives as long as the process.
var panics = prometheus.NewCounterVec(prometheus.CounterOpts{
	Namespace: "skerry", Name: "recovered_panics_total", Help: "Recovered panics; each is a bug, and the log has its stack.",
}, []string{"place"})

// Metric is for the registry of a program.
func Metric() prometheus.Collector { return panics }

// Do calls f and returns its error, ErrPanic where it panics. place is constant text that names
// the caller.
func Do(ctx context.Context, place string, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			panics.WithLabelValues(place).Inc()
			klog.FromContext(ctx).Error(ErrPanic, "Recovered a panic: report it with its stack", "place", place, "panic", p, "stack", string(debug.Stack()))
			err = ErrPanic
		}
	}()
	return f()
}

// Call calls f, and returns also where it panics.
func Call(ctx context.Context, place string, f func()) {
	_ = Do(ctx, place, func() error { f(); return nil }) // logged and counted
}
