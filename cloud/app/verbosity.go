package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/cloud/internal/core/config"
	"github.com/skerry-io/skerry/cloud/internal/core/fleet"
	"github.com/skerry-io/skerry/common/httpserver"
	"github.com/skerry-io/skerry/common/logging"
)

const (
	// verbosityConnections bounds the connections of the socket; further ones wait.
	verbosityConnections = 4
	verbosityTimeout     = 10 * time.Second
)

// verbositySocket is the abstract unix socket where cloudcore takes another verbosity: a container
// with a read-only filesystem has no place for a file. Of two in one network namespace each has
// other listeners.
func verbositySocket(cfg *config.Config) string {
	return "@skerry-cloudcore/" + cfg.Devices.Listen.Listen + "/" + cfg.Health.Listen
}

// LogsTo lets users of this machine or container change the verbosity while cloudcore runs: root
// and the user that cloudcore runs as. It is called before Run.
func (a *App) LogsTo(log *logging.Log) { a.log = log }

// verbosity is the module that serves the socket.
func (a *App) verbosity() beehive.Entry { return restarted("verbosity", a.serveVerbosity) }

// serveVerbosity serves the socket until ctx ends.
func (a *App) serveVerbosity(ctx context.Context) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", verbositySocket(a.config))
	if err != nil { // devices are served all the same
		klog.FromContext(ctx).Error(err, "Failed to listen for the command `cloudcore log`, which works after a restart of cloudcore")
		<-ctx.Done()
		return nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("PUT "+logging.Path, a.log.Handler(a.runner.Wiring().Names()))
	server := &http.Server{Handler: mux, ReadTimeout: verbosityTimeout, WriteTimeout: verbosityTimeout, MaxHeaderBytes: 4 << 10}
	return httpserver.Serve(ctx, server, netutil.LimitListener(ownUser{l}, verbosityConnections), "the verbosity")
}

// ownUser is a listener that closes connections of other users than root and ours: an abstract
// socket has no permissions.
type ownUser struct{ net.Listener }

func (l ownUser) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err //nolint:wrapcheck // net/http looks at it
		}
		if uid, err := peer(c); err == nil && (uid == 0 || int(uid) == os.Geteuid()) {
			return c, nil
		}
		_ = c.Close()
	}
}

// peer is the user at the other end of a unix socket.
func peer(c net.Conn) (uid uint32, err error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return 0, errors.New("not a unix socket")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("looking at a connection: %w", err)
	}
	var cred *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, failed); err != nil {
		return 0, fmt.Errorf("looking at a connection: %w", err)
	}
	return cred.Uid, nil
}

// SetVerbosity changes the verbosity of the cloudcore that runs here with a configuration, or of
// one of its modules.
func SetVerbosity(ctx context.Context, cfg *config.Config, module, verbosity string) error {
	client := http.Client{
		Timeout: verbosityTimeout,
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", verbositySocket(cfg))
		}},
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://cloudcore"+logging.Path+"?"+url.Values{"v": {verbosity}, "module": {module}}.Encode(), http.NoBody)
	if err != nil {
		return fmt.Errorf("writing the request: %w", err)
	}
	answer, err := client.Do(request)
	if err != nil {
		if dial := (*net.OpError)(nil); errors.As(err, &dial) && dial.Op == "dial" {
			return fmt.Errorf("cloudcore is not running here with this configuration: %w", dial.Err)
		}
		return fmt.Errorf("asking cloudcore, which accepts root and its own user: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 4<<10))
		return errors.New(fleet.Printable(strings.TrimSpace(string(text)), len(text))) // any user may have bound the name first
	}
	return nil
}
