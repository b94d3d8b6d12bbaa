package cri

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/rerun"
	"github.com/skerry-io/skerry/common/tunnel"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/sockdiag"
)

const (
	maxStreams    = 640              // as many as a node's link carries; more are closed
	streamTimeout = 10 * time.Second // of a connection to the runtime
)

// Streams leads the kubelet's connections for exec, attach and port-forward to the stream server of
// the container runtime, and keeps the end of an output there (sockdiag.Answer): the runtime closes
// a connection as soon as the program has ended, and the kubelet sends it pings.
//
// It is gRPC's codec, too (encoding.RegisterCodecV2): answers of the runtime with the URL of its
// stream server get the URL of this one. It refuses other processes, which could use up its places,
// and more streams than a node's link carries, and leaves URLs alone that it can't lead. Its
// methods may be called by many goroutines at once.
type Streams struct {
	encoding.CodecV2 // gRPC's own

	own     atomic.Pointer[netip.AddrPort] // nil: it does not run, and the kubelet connects to the runtime
	runtime atomic.Pointer[netip.AddrPort]
}

// NewStreams returns Streams.
func NewStreams() *Streams { return &Streams{CodecV2: encoding.GetCodecV2(proto.Name)} }

// Unmarshal implements encoding.CodecV2.
func (s *Streams) Unmarshal(data mem.BufferSlice, v any) error {
	if err := s.CodecV2.Unmarshal(data, v); err != nil {
		return err
	}
	switch answer := v.(type) {
	case *runtimeapi.ExecResponse:
		answer.Url = s.lead(answer.Url)
	case *runtimeapi.AttachResponse:
		answer.Url = s.lead(answer.Url)
	case *runtimeapi.PortForwardResponse:
		answer.Url = s.lead(answer.Url)
	}
	return nil
}

// lead returns the URL here for one of the runtime's stream server. One with TLS, or elsewhere than
// at an address, stays as it is.
func (s *Streams) lead(raw string) string {
	own := s.own.Load()
	u, err := url.Parse(raw)
	if own == nil || err != nil || u.Scheme != "http" {
		return raw
	}
	at, err := netip.ParseAddrPort(u.Host)
	if err != nil {
		return raw
	}
	s.runtime.Store(&at)
	u.Host = own.String()
	return u.String()
}

// Run serves until ctx ends.
func (s *Streams) Run(ctx context.Context) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("serving the kubelet's streams: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	defer l.Close()
	own := l.Addr().(*net.TCPAddr).AddrPort()
	s.own.Store(&own)
	defer s.own.Store(nil)
	var open sync.WaitGroup
	defer open.Wait()
	places := make(chan struct{}, maxStreams)
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil { // no file descriptors, or a client that is gone
			klog.FromContext(ctx).Error(err, "Failed to accept a stream of the kubelet, retrying")
			_ = rerun.Pause(ctx, time.Second)
			continue
		}
		if own, err := sockdiag.Own(conn.(*net.TCPConn)); err != nil || !own {
			klog.FromContext(ctx).V(2).Info("Closed a stream that is not the kubelet's", "remote", conn.RemoteAddr(), "err", err)
			_ = conn.Close()
			continue
		}
		select {
		case places <- struct{}{}:
		default:
			klog.FromContext(ctx).Info("Closed a stream of the kubelet: the limit is reached", "limit", maxStreams)
			_ = conn.Close()
			continue
		}
		open.Go(func() {
			defer func() { <-places }()
			s.serve(ctx, conn)
		})
	}
}

func (s *Streams) serve(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	runtime := s.runtime.Load()
	if runtime == nil { // who connects has no URL
		return
	}
	far, err := (&net.Dialer{Timeout: streamTimeout}).DialContext(ctx, "tcp", runtime.String())
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to connect to the stream server of the container runtime")
		return
	}
	tunnel.Splice(ctx, conn, sockdiag.KeepAnswer(far))
}
