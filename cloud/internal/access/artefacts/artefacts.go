// Package artefacts sends devices the files of a repository of artefacts, by streams that they
// open: the lowest class of their links.
//
// It owns a directory, which it only reads; the devices verify the files in it, with keys that
// cloudcore does not have. It refuses names that are no name of a file in that directory, and more
// streams than its bound. A Server may be used by many goroutines at once.
package artefacts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// Prefix is how the target of a stream for artefacts begins; the file's name, a slash and an offset
// follow. The same word is in edge/internal/core/artefact.
const Prefix = "artefact/"

const (
	// most bounds the streams of all nodes together: at the bound one more is refused, and the
	// device comes again.
	most = 32
	// perNode bounds those of one node.
	perNode = 2
	// maxFile bounds a file that is sent, in bytes.
	maxFile = 512 << 20
	block   = 32 << 10
	// stall is how long a device may take no byte: its stream is closed then.
	stall = 5 * time.Minute
)

// Server serves devices.
type Server struct {
	root  string
	bytes prometheus.Counter
	open  prometheus.GaugeFunc

	mu     sync.Mutex
	count  int
	byNode map[types.NodeName]int
}

// New returns a Server of a directory; "" for an empty one. It reads no file yet.
func New(dir string) *Server {
	s := &Server{root: dir, byNode: map[types.NodeName]int{}}
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "skerry", Subsystem: "artefacts", Name: name, Help: help}
	}
	s.open = prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts("streams", "Open streams of artefacts to devices.")), func() float64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return float64(s.count)
	})
	s.bytes = prometheus.NewCounter(prometheus.CounterOpts(opts("sent_bytes_total", "Bytes of artefacts that were sent to devices.")))
	return s
}

// Describe implements prometheus.Collector.
func (s *Server) Describe(ch chan<- *prometheus.Desc) { s.open.Describe(ch); s.bytes.Describe(ch) }

// Collect implements prometheus.Collector.
func (s *Server) Collect(ch chan<- prometheus.Metric) { s.open.Collect(ch); s.bytes.Collect(ch) }

// parse divides a target after Prefix into a name and an offset.
func parse(target string) (name string, offset int64, err error) {
	name, at, ok := strings.Cut(strings.TrimPrefix(target, Prefix), "/")
	if !ok || !plain(name) {
		return "", 0, fmt.Errorf("%.64q is no name of an artefact", target)
	}
	if offset, err = strconv.ParseInt(at, 10, 64); err != nil || offset < 0 || offset > maxFile || strconv.FormatInt(offset, 10) != at {
		return "", 0, fmt.Errorf("%.32q is no offset in an artefact", at)
	}
	return name, offset, nil
}

func plain(name string) bool {
	if name == "" || len(name) > 200 || name[0] == '.' {
		return false
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '.' && c != '_' && c != '+' {
			return false
		}
	}
	return true
}

// Accept sends a node the rest of the file that it asks for. Its error is the one that the device
// reports.
func (s *Server) Accept(ctx context.Context, node types.NodeName, target string) (net.Conn, error) {
	name, offset, err := parse(target)
	if err != nil {
		return nil, err
	}
	if s.root == "" {
		return nil, errors.New("cloudcore has no artefacts: artefacts.dir is empty")
	}
	f, size, err := s.find(name)
	if err != nil {
		return nil, err
	}
	if offset > size {
		_ = f.Close()
		return nil, fmt.Errorf("artefact %s has %d bytes", name, size)
	}
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("reading artefact %s failed", name)
	}
	if err := s.enter(node); err != nil {
		_ = f.Close()
		return nil, err
	}
	near, far := net.Pipe()
	go s.send(klog.FromContext(ctx).WithValues("node", node, "artefact", name, "offset", offset), node, f, far)
	return near, nil
}

// find opens a file of the directory, without following a link out of it.
func (s *Server) find(name string) (*os.File, int64, error) {
	root, err := os.OpenRoot(s.root)
	if err != nil {
		return nil, 0, errors.New("cloudcore can't read its artefacts.dir")
	}
	defer root.Close()
	f, err := root.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, fmt.Errorf("no artefact %s", name)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("cloudcore can't read artefact %s", name)
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxFile {
		_ = f.Close()
		return nil, 0, fmt.Errorf("%s is no file of at most %d MiB", name, maxFile>>20)
	}
	return f, info.Size(), nil
}

// enter takes a place for a stream of a node.
func (s *Server) enter(node types.NodeName) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.byNode[node] >= perNode:
		return fmt.Errorf("this device reads %d artefacts already", perNode)
	case s.count >= most:
		return fmt.Errorf("cloudcore sends %d artefacts already", most)
	}
	s.byNode[node]++
	s.count++
	return nil
}

func (s *Server) leave(node types.NodeName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count--
	if s.byNode[node]--; s.byNode[node] == 0 {
		delete(s.byNode, node)
	}
}

// send ends with the file, or when the device closes the stream.
func (s *Server) send(logger klog.Logger, node types.NodeName, from *os.File, to net.Conn) {
	defer s.leave(node)
	defer to.Close()
	defer from.Close()
	n, err := io.CopyBuffer(struct{ io.Writer }{patient{to}}, struct{ io.Reader }{from}, make([]byte, block))
	s.bytes.Add(float64(n))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		logger.Info("Closed a stream that its device did not read; the device continues the transfer", "bytes", n, "after", stall)
		return
	}
	if err != nil && !errors.Is(err, io.ErrClosedPipe) {
		logger.Error(err, "Failed to send an artefact; the device continues the transfer", "bytes", n)
		return
	}
	logger.V(2).Info("Sent an artefact", "bytes", n)
}

// patient is a connection that waits for a bounded time until its peer takes a block.
type patient struct{ net.Conn }

func (p patient) Write(b []byte) (int, error) {
	if err := p.SetWriteDeadline(time.Now().Add(stall)); err != nil {
		return 0, err
	}
	return p.Conn.Write(b)
}
