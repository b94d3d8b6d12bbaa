// Package statusserver serves the status of this device and its applications to other devices of
// the cluster, and to users, by HTTPS on an address of the device.
//
// It owns one listener, which is open only while its address is on an interface. It refuses clients
// without a certificate of the cluster's CA and, where it has a site, nodes that are not in it or
// were revoked, and shows applications to nodes and administrators alone. It reads the edge API and
// files, never the cloud, and each answer contains the age of its data. Each part of a page is made
// by a function for that part only, so a missing part can't cut the page short. Bounds: atOnce
// requests, then 503; mostBytes an answer; mostPeers peers, peerTimeout each, all at once.
//
// From the bottom: trust, config, part (of a page), peer, Server. Requests are served by many
// goroutines, which share only constant data.
package statusserver

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/core/connshare"
)

// Name is the module's.
const Name message.Name = "statusserver"

// Connections that are open at once, all together and of one address, before a certificate is
// shown.
const (
	mostConns      = 64
	connsOfAddress = 8
)

// Server is the module.
type Server struct {
	config Config
	reader *reader
	slots  chan struct{}
}

// New makes the server.
func New(config Config) (*Server, error) {
	if len(config.Peers) > mostPeers {
		return nil, fmt.Errorf("%d peers are more than %d", len(config.Peers), mostPeers)
	}
	r, err := newReader(config)
	if err != nil {
		return nil, err
	}
	return &Server{config: config, reader: r, slots: make(chan struct{}, atOnce)}, nil
}

// Name implements beehive.Module.
func (*Server) Name() message.Name { return Name }

// Run implements beehive.Module. It listens while the address is on an interface, until ctx ends.
func (s *Server) Run(ctx context.Context, port *beehive.Port) error {
	port.Ready()
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		if present(s.config.Listen.Addr()) {
			if err := s.listen(ctx); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Status server failed to listen, retrying", "address", s.config.Listen)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// present reports whether an address is on an interface.
func present(a netip.Addr) bool {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, x := range all {
		if p, err := netip.ParsePrefix(x.String()); err == nil && p.Addr().Unmap() == a {
			return true
		}
	}
	return false
}

// listen serves until ctx ends or the address is gone.
func (s *Server) listen(ctx context.Context) error {
	l, err := net.Listen("tcp", s.config.Listen.String())
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	server := &http.Server{
		Handler: s.Handler(), TLSConfig: s.TLS(), ReadTimeout: ioTimeout, ReadHeaderTimeout: ioTimeout,
		WriteTimeout: ioTimeout + peerTimeout, MaxHeaderBytes: 16 << 10,
	}
	klog.FromContext(ctx).Info("Status server is listening", "address", l.Addr())
	g, serving := errgroup.WithContext(ctx)
	g.Go(func() error {
		bounded := netutil.LimitListener(connshare.Listen(l, connshare.New(mostConns, connsOfAddress).Each), mostConns)
		if err := server.ServeTLS(bounded, "", ""); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serving: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		tick := time.NewTicker(lookAgain)
		defer tick.Stop()
		for {
			select {
			case <-serving.Done():
				return server.Close()
			case <-tick.C:
				if !present(s.config.Listen.Addr()) {
					klog.FromContext(ctx).Info("Closing the status server: its address is on no interface", "address", s.config.Listen)
					return server.Close()
				}
			}
		}
	})
	return g.Wait()
}

// TLS is the server's configuration.
func (s *Server) TLS() *tls.Config { return s.config.Trust.server() }

// Handler serves the pages.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/status", s.status)
	mux.HandleFunc("/app/", s.private(func(w http.ResponseWriter, r *http.Request) {
		page, code, err := s.reader.page(r.Context(), strings.TrimPrefix(r.URL.Path, "/app/"))
		s.answer(w, page, code, err)
	}))
	mux.HandleFunc("/cluster-app/", s.private(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimPrefix(r.URL.Path, "/cluster-app/")
		if !validName(name) {
			http.NotFound(w, r)
			return
		}
		s.answer(w, merged(r.Context(), s.config, s.reader, name), http.StatusOK, nil)
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			w.Header().Set("Allow", http.MethodGet)
			http.Error(w, "only GET is served", http.StatusMethodNotAllowed)
			return
		}
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
		default:
			w.Header().Set("Retry-After", "1")
			http.Error(w, fmt.Sprintf("%d requests are served already", atOnce), http.StatusServiceUnavailable)
			return
		}
		k := s.reader.knowledge()
		w.Header().Set("Skerry-Linked", fmt.Sprint(k.Linked))
		w.Header().Set("Skerry-Known-As-Of", k.AsOf.UTC().Format(time.RFC3339))
		mux.ServeHTTP(w, r)
	})
}

// private keeps the pages of applications from all but nodes and administrators.
func (s *Server) private(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || !known(r.TLS.PeerCertificates) {
			http.Error(w, "this is for nodes of the cluster and its administrators", http.StatusForbidden)
			return
		}
		serve(w, r)
	}
}

// status is the page that a joining node waits for: plain text, or JSON for clients that accept it.
func (s *Server) status(w http.ResponseWriter, r *http.Request) {
	is := s.reader.server(r.Context())
	text := ""
	if is {
		text = "cluster:" + s.config.ClusterID
	}
	if strings.Contains(r.Header.Get("Accept"), "application/json") {
		s.answer(w, map[string]any{"cluster": s.config.ClusterID, "server": is, "status": text, "knowledge": s.reader.knowledge()}, http.StatusOK, nil)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte(text)) // the client is gone
}

func (s *Server) answer(w http.ResponseWriter, v any, code int, err error) {
	if err != nil {
		http.Error(w, err.Error(), code)
		return
	}
	raw, err := json.Marshal(v)
	if err == nil && len(raw) > mostBytes {
		err = fmt.Errorf("the answer is longer than %d bytes", mostBytes)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(raw) // the client is gone
}
