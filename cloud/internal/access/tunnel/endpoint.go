package tunnel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/cloud/internal/access/clienthello"
	"github.com/skerry-io/skerry/common/tunnel"
)

const (
	// Alerts report a refusal to a client that has sent only its ClientHello (RFC 8446,
	// 6.2).
	alertInternalError    = 80
	alertUnrecognizedName = 112
)

// ServeNames leads each connection to the kubelet of the edge node that its TLS client asks for by
// name (RFC 6066, section 3). It is the way in for those that can only dial a node's address: a
// kube-apiserver that can't be configured, metrics-server, Prometheus. The TLS session is the
// kubelet's, which judges the client; the client is unknown here. So such connections take
// at most half of the places. It returns when ctx has ended, and every connection with it.
func (t *Tunnel) ServeNames(ctx context.Context, listener net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var open sync.WaitGroup
	defer open.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	places := make(chan struct{}, max(t.config.MaxStreams/2, 1))
	for {
		conn, err := listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			if temporary, ok := errors.AsType[interface {
				error
				Temporary() bool
			}](err); ok && temporary.Temporary() { // out of descriptors, most likely
				time.Sleep(10 * time.Millisecond)
				continue
			}
			return fmt.Errorf("accepting connections to kubelets: %w", err)
		}
		select {
		case places <- struct{}{}:
			open.Go(func() {
				defer func() { <-places }()
				t.leadByName(ctx, conn)
			})
		default:
			t.metrics.refuse(byName, "busy")
			_ = conn.Close()
		}
	}
}

// leadByName carries one connection.
func (t *Tunnel) leadByName(ctx context.Context, near net.Conn) {
	defer near.Close()
	defer context.AfterFunc(ctx, func() { _ = near.Close() })()
	log := klog.FromContext(ctx).WithValues("remote", near.RemoteAddr().String())
	if err := near.SetDeadline(time.Now().Add(headTimeout)); err != nil {
		return
	}
	hello, read, err := clienthello.Read(near)
	if err != nil {
		log.V(2).Info("Closed a connection without a TLS ClientHello", "err", err)
		t.metrics.refuse(byName, "hello")
		return
	}
	log = log.WithValues("name", hello.ServerName)
	node := types.NodeName(strings.ToLower(strings.TrimSuffix(hello.ServerName, ".")))
	if edge, _, err := t.config.Nodes.kubelet(node); err != nil || !edge {
		log.V(2).Info("Refused a connection: its server name is no edge node")
		t.metrics.refuse(byName, "unknown")
		alert(near, alertUnrecognizedName)
		return
	}
	back, ok := t.take()
	if !ok {
		log.Info("Refused a connection: the limit is reached")
		t.metrics.refuse(byName, "busy")
		alert(near, alertInternalError)
		return
	}
	defer back()
	far, err := t.Dial(ctx, node)
	if err != nil {
		log.V(2).Info("Failed to connect to a kubelet", "err", err)
		t.metrics.refuse(byName, "unreachable")
		alert(near, alertInternalError)
		return
	}
	if err := near.SetDeadline(time.Time{}); err != nil {
		_ = far.Close()
		return
	}
	defer t.metrics.begin(byName)()
	tunnel.Splice(ctx, t.metrics.meter(after(near, read)), far)
}

// alert ends a connection by a fatal alert, which is all that a client learns of the reason.
func alert(conn net.Conn, code byte) { _, _ = conn.Write([]byte{21, 3, 3, 0, 2, 2, code}) }
