package tunnel

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// forwarded marks requests of another replica: they are not forwarded a second time.
	forwarded = "Skerry-Forwarded"
	// streamTarget names the stream's target, in the request and again in the answer: a
	// replica without it opens the kubelet's TLS.
	streamTarget = "Skerry-Stream"
	// maxAnswer bounds the head of an answer to CONNECT, in bytes.
	maxAnswer = 16 << 10
)

// forward asks another replica for a stream to a node's kubelet. An *Unavailable is that
// replica's own answer.
func (t *Tunnel) forward(ctx context.Context, address string, node types.NodeName, target string) (net.Conn, error) {
	dialer := tls.Dialer{Config: t.config.Peer}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	ok := false
	defer func() {
		if !ok {
			_ = conn.Close()
		}
	}()
	if deadline, set := ctx.Deadline(); set {
		if err := conn.SetDeadline(deadline); err != nil {
			return nil, err
		}
	}
	if _, err := fmt.Fprintf(conn, "CONNECT %s:0 HTTP/1.1\r\nHost: %s\r\n%s: %s\r\n%s: %s\r\n\r\n", node, node, forwarded, t.config.Instance, streamTarget, target); err != nil {
		return nil, err
	}
	r := bufio.NewReader(io.LimitReader(conn, maxAnswer))
	res, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return nil, fmt.Errorf("reading its answer: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		_, reason, _ := strings.Cut(res.Status, " ")
		return nil, &Unavailable{node, strings.TrimPrefix(reason, string(node)+" ")}
	}
	if got := cmp.Or(res.Header.Get(streamTarget), kubelet); got != target {
		return nil, unavailable(node, "can't be asked for %s: the cloudcore that holds its link is older than this one", target)
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, err
	}
	ok = true
	early, err := r.Peek(r.Buffered())
	if err != nil {
		return nil, err
	}
	return after(conn, early), nil
}

// after is a connection of which some bytes were read already.
func after(conn net.Conn, early []byte) net.Conn {
	if len(early) == 0 {
		return conn
	}
	return &resumed{Conn: conn, early: early}
}

type resumed struct {
	net.Conn
	early []byte // owned by Read
}

func (r *resumed) Read(b []byte) (int, error) {
	if len(r.early) > 0 {
		n := copy(b, r.early)
		r.early = r.early[n:]
		return n, nil
	}
	return r.Conn.Read(b)
}

// CloseWrite ends one direction, where the connection can.
func (r *resumed) CloseWrite() error {
	if half, ok := r.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return r.Close()
}
