// Package httpserver is the common part of every HTTP server here: how it ends, and where
// net/http's own complaints go.
//
// It owns no listener, no handler and no limit: those differ. It refuses to log a failed
// handshake as an error: scanners of the internet cause them at will. Its functions may be called
// by many goroutines.
package httpserver

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"strings"

	"k8s.io/klog/v2"
)

// Serve answers on l, which it closes, until ctx ends; then every connection ends, and it returns
// nil. The argument what names the server in its error and its log.
func Serve(ctx context.Context, server *http.Server, l net.Listener, what string) error {
	server.ErrorLog = Log(klog.FromContext(ctx), what)
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	err := server.Serve(l)
	_ = server.Close()
	if ctx.Err() != nil && errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serving %s: %w", what, err)
}

// Log is for a server's ErrorLog: net/http's messages about handshakes that failed and handlers
// that panicked, one line each, at level 2.
func Log(logger klog.Logger, what string) *log.Logger {
	return log.New(writer{logger, what}, "", 0)
}

type writer struct {
	log  klog.Logger
	what string
}

func (w writer) Write(p []byte) (int, error) {
	w.log.V(2).Info("HTTP server", "serving", w.what, "problem", strings.TrimSpace(string(p)))
	return len(p), nil
}
