package sharing

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/edge/internal/core/artefact"
)

// Bounds of waiting for another device.
const (
	// answerTime is how long a device may take to tell whether it has a program: the first time it
	// computes its package's digest, and a card may read 10 MB a second.
	answerTime = 15 * time.Second
	// chunkTime is how long a device may take for maxChunk: 52 KiB a second, which is more than a
	// thin link has.
	chunkTime = 20 * time.Second
)

// Client takes programs from other devices of the site.
type Client struct {
	devices  func() []string
	dial     func(ctx context.Context, node string) (Conn, error)
	received atomic.Int64
	counter  prometheus.Counter
}

// NewClient makes a Client. devices returns those that can be asked now, dial connects to one.
func NewClient(devices func() []string, dial func(ctx context.Context, node string) (Conn, error)) *Client {
	return &Client{devices: devices, dial: dial, counter: prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "skerry", Subsystem: "sharing", Name: "received_bytes_total", Help: "Bytes of programs received from devices of the site.",
	})}
}

// Metrics is for the registry of a program.
func (c *Client) Metrics() prometheus.Collector { return c.counter }

// Received returns how many bytes came from other devices since edgecore started.
func (c *Client) Received() int64 { return c.received.Load() }

// Open implements artefact.Neighbours. It asks the devices in any order, so that those that take a
// program at once spread over those that have it.
func (c *Client) Open(ctx context.Context, t artefact.Target, offset int64, skip map[string]bool) (io.ReadCloser, string, error) {
	digest, err := parse(t.Digest)
	if err != nil {
		return nil, "", err
	}
	nodes := c.devices()
	rand.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	result := artefact.ErrNoNeighbour
	for _, node := range nodes {
		if skip[node] {
			continue
		}
		r := &reader{client: c, digest: digest, size: t.Size, offset: offset}
		err := r.open(ctx, node)
		if err == nil {
			return r, node, nil
		}
		if ctx.Err() != nil {
			return nil, "", ctx.Err()
		}
		if errors.Is(err, errBusy) {
			result = artefact.ErrNeighboursBusy
		}
		klog.FromContext(ctx).V(4).Info("Failed to get a program from a device of the site", "device", node, "err", err)
	}
	return nil, "", result
}

var (
	errBusy    = errors.New("the device is busy")
	errNotHere = errors.New("the device does not have the program")
)

// reader reads a program of one device, chunk by chunk.
type reader struct {
	client *Client
	conn   Conn
	stop   func() bool
	digest [digestSize]byte
	size   int64 // of the program
	offset int64 // of the next byte
	left   int64 // of the chunk
}

// open connects, and asks for the first chunk: a device that has a program may be busy.
func (r *reader) open(ctx context.Context, node string) error {
	conn, err := r.client.dial(ctx, node)
	if err != nil {
		return err
	}
	r.conn, r.stop = conn, context.AfterFunc(ctx, func() { _ = conn.Close() })
	if err := r.ask(answerTime); err != nil {
		_ = r.Close()
		return err
	}
	return nil
}

// ask asks for the next chunk, and reads the answer up to its bytes. Those have to be there in
// chunkTime.
func (r *reader) ask(patience time.Duration) error {
	one := request{r.digest, uint64(r.offset), uint32(min(maxChunk, r.size-r.offset))}
	now := time.Now()
	if err := errors.Join(r.conn.SetWriteDeadline(now.Add(patience)), r.conn.SetReadDeadline(now.Add(patience))); err != nil {
		return err
	}
	if _, err := r.conn.Write(one.append(nil)); err != nil {
		return err
	}
	a, err := readAnswer(r.conn, one, r.size)
	switch {
	case err != nil:
		return err
	case a.code == busy:
		return errBusy
	case a.code != hasIt:
		return errNotHere
	}
	r.left = int64(a.length)
	return r.conn.SetReadDeadline(now.Add(chunkTime))
}

// Read implements io.Reader.
func (r *reader) Read(b []byte) (int, error) {
	if r.offset >= r.size {
		return 0, io.EOF
	}
	if r.left == 0 {
		if err := r.ask(chunkTime); err != nil {
			return 0, fmt.Errorf("asking for bytes from %d on: %w", r.offset, err)
		}
	}
	n, err := r.conn.Read(b[:min(int64(len(b)), r.left)])
	r.left, r.offset = r.left-int64(n), r.offset+int64(n)
	r.client.received.Add(int64(n))
	r.client.counter.Add(float64(n))
	if errors.Is(err, io.EOF) && r.offset < r.size {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Close implements io.Closer.
func (r *reader) Close() error {
	r.stop()
	return r.conn.Close()
}
