package edgeapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/httpserver"
)

const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	shutdownTimeout   = 2 * time.Second // open watches are cut then
	maxHeaderBytes    = 64 << 10
)

// Serve opens the listeners and serves until ctx ends; ready is called when clients can connect. A
// socket left by a process that died is replaced; one that a process still serves is not.
func (s *Server) Serve(ctx context.Context, ready func()) error {
	var servers []*http.Server
	address := "" // of the TLS listener
	var listeners []net.Listener
	closeAll := func() {
		for _, l := range listeners {
			_ = l.Close()
		}
	}
	add := func(l net.Listener, handler http.Handler) {
		servers = append(servers, &http.Server{
			Handler:           handler,
			ReadHeaderTimeout: readHeaderTimeout,
			IdleTimeout:       idleTimeout,
			MaxHeaderBytes:    maxHeaderBytes,
			BaseContext:       func(net.Listener) context.Context { return ctx }, // its logger; and its end ends the watches
			ErrorLog:          httpserver.Log(klog.FromContext(ctx), "the device's API"),
		})
		listeners = append(listeners, l)
	}
	if s.config.Socket != "" {
		l, err := ListenUnix(s.config.Socket)
		if err != nil {
			return err
		}
		add(l, s.socketHandler())
	}
	if s.config.Listen != "" {
		config, err := s.tlsConfig()
		if err != nil {
			closeAll()
			return err
		}
		l, err := net.Listen("tcp", s.config.Listen)
		if err != nil {
			closeAll()
			if errors.Is(err, syscall.EADDRINUSE) {
				return fmt.Errorf("%s is in use by another process; stop it, or set modules.edgeAPI.listen to a free address: %w", s.config.Listen, err)
			}
			return fmt.Errorf("listening for the device's API: %w", err)
		}
		address = l.Addr().String()
		add(tls.NewListener(bounded(l, nil), config), s.Handler(s.ByCertificate))
	}
	if s.config.Pods != "" {
		if err := s.ServePods(nil); err != nil {
			closeAll()
			return err
		}
		l, err := (&net.ListenConfig{Control: freebind}).Listen(ctx, "tcp", s.config.Pods)
		if err != nil {
			closeAll()
			return fmt.Errorf("listening for pods: %w", err)
		}
		add(tls.NewListener(bounded(l, func(a netip.Addr) bool { return s.sources.allows(ctx, a) }), s.podsTLS()), s.Handler(s.ByToken))
	}

	g, ctx := errgroup.WithContext(ctx)
	for i := range servers {
		g.Go(func() error {
			if err := servers[i].Serve(listeners[i]); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serving the device's API: %w", err)
			}
			return nil
		})
		g.Go(func() error {
			<-ctx.Done()
			stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
			defer cancel()
			if err := servers[i].Shutdown(stopping); err != nil {
				return servers[i].Close()
			}
			return nil
		})
	}
	if address != "" {
		// A disk that is full is no reason not to serve: the kubeconfig of the last start is as
		// good, as long as the address and the authority are the same.
		if err := s.writeKubeconfig(address); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to write the kubeconfig of the device's API, retrying", "again", kubeconfigRetry)
			g.Go(func() error { return s.retryKubeconfig(ctx, address) })
		}
	}
	ready()
	if len(servers) == 0 {
		<-ctx.Done()
	}
	return g.Wait()
}

// kubeconfigRetry is the time between two tries to write the admin's kubeconfig.
const kubeconfigRetry = 30 * time.Second

// retryKubeconfig writes the admin's kubeconfig as soon as that can be done.
func (s *Server) retryKubeconfig(ctx context.Context, address string) error {
	tick := time.NewTicker(kubeconfigRetry)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if s.writeKubeconfig(address) == nil {
			return nil
		}
	}
}

// ByCertificate authenticates root of the device by its verified client certificate, and service
// accounts by their tokens (ByToken).
func (s *Server) ByCertificate(r *http.Request) (Identity, error) {
	if _, ok := bearer(r); ok {
		return s.ByToken(r)
	}
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		return Identity{Device: true}, nil
	}
	return Identity{}, apierrors.NewUnauthorized("the device's API wants the client certificate of its admin kubeconfig, or a ServiceAccount token")
}

// ByToken authenticates service accounts by their tokens and no other client. The device checks
// each token itself first: an invalid one does not cross the link.
func (s *Server) ByToken(r *http.Request) (Identity, error) {
	token, ok := bearer(r)
	if !ok {
		return Identity{}, apierrors.NewUnauthorized("the device's API wants a ServiceAccount token")
	}
	if err := s.grants.admit(r.Context(), token); err != nil {
		return Identity{}, err
	}
	return Identity{Token: token}, nil
}

// socketHandler answers Kubernetes' paths, and the process's own.
func (s *Server) socketHandler() http.Handler {
	kubernetes := s.Handler(AsDevice)
	if s.config.Local == nil {
		return kubernetes
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/skerry/") {
			s.config.Local.ServeHTTP(w, r)
			return
		}
		kubernetes.ServeHTTP(w, r)
	})
}

// ListenUnix opens the socket for root alone. It is bound in a directory that only root can enter,
// and gets its own name when it has its mode: under that name it was never open to others. (A umask
// would do as well, but is the whole process's.)
func ListenUnix(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("making the directory of the API's socket: %w", err)
	}
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("%s is served by another process: is edgecore running already?", path)
	}
	private, err := os.MkdirTemp(filepath.Dir(path), ".edge-api-")
	if err != nil {
		return nil, fmt.Errorf("making the API's socket: %w", err)
	}
	defer os.RemoveAll(private)
	first := filepath.Join(private, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: first, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("making the API's socket: %w", err)
	}
	l.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(first, 0o600), os.Rename(first, path)); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("making the API's socket: %w", err)
	}
	return &unixListener{l, path}, nil
}

// unixListener removes its name, which differs from the one it was bound to.
type unixListener struct {
	*net.UnixListener
	path string
}

func (l *unixListener) Close() error {
	err := l.UnixListener.Close()
	if removeErr := os.Remove(l.path); removeErr != nil && !errors.Is(removeErr, os.ErrNotExist) && err == nil {
		return removeErr
	}
	return err
}
