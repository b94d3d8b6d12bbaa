// Package line is the network path between a device and the cloud: one loopback address that leads
// to one of several servers, with its possible faults.
//
// It owns a listener and its connections while it serves, and does not read their content. A Line's
// state may be changed at any time by any goroutine, and applies at once, also for connections that
// are open.
package line

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// State is the condition of a line. The zero State is a good line.
type State struct {
	// Cut breaks connections and refuses new ones.
	Cut bool
	// Silent drops all bytes: connections stay open and no byte arrives.
	Silent bool
	// Rate is how many bytes a second pass each way; 0 is no limit.
	Rate int
}

// Line leads to servers.
type Line struct {
	listener net.Listener
	servers  func() []string // in the order in which they are tried

	mu      sync.Mutex
	state   State
	avoided string        // a server that gets no connections; "" without one
	changed chan struct{} // closed and replaced when state is
	open    map[net.Conn]bool
}

// Listen opens a line at a free port of loopback that leads to one of the servers, which one is
// drawn for each connection; one that does not answer is passed over.
func Listen(servers ...string) (*Line, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("opening a line: %w", err)
	}
	return &Line{listener: l, changed: make(chan struct{}), open: map[net.Conn]bool{}, servers: func() []string {
		all := make([]string, 0, len(servers))
		for _, i := range rand.Perm(len(servers)) {
			all = append(all, servers[i])
		}
		return all
	}}, nil
}

// Port is where the line begins.
func (l *Line) Port() int { return l.listener.Addr().(*net.TCPAddr).Port }

// Set changes the state of the line.
func (l *Line) Set(s State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Bytes dropped while the line was silent are missing in the stream: a connection that survives
	// could continue, as TCP would send again, so it simply pauses in the meantime.
	l.state = s
	close(l.changed)
	l.changed = make(chan struct{})
	if s.Cut {
		for c := range l.open {
			reset(c)
		}
	}
}

// Avoid leads no new connection to a server; "" without one.
func (l *Line) Avoid(server string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.avoided = server
}

func (l *Line) avoids(server string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.avoided == server
}

func (l *Line) get() (State, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state, l.changed
}

// reset ends a connection at once, whatever waits to be sent.
func reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}

// Serve leads connections until ctx ends.
func (l *Line) Serve(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { l.listener.Close() })
	defer stop()
	var all sync.WaitGroup
	defer all.Wait()
	for {
		c, err := l.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accepting a connection: %w", err)
		}
		all.Go(func() { l.lead(ctx, c) })
	}
}

func (l *Line) lead(ctx context.Context, near net.Conn) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !l.keep(near) {
		reset(near)
		return
	}
	defer l.drop(near)
	var far net.Conn
	for _, s := range l.servers() {
		if l.avoids(s) {
			continue
		}
		var err error
		if far, err = net.DialTimeout("tcp", s, 2*time.Second); err == nil {
			break
		}
	}
	if far == nil || !l.keep(far) {
		return
	}
	defer l.drop(far)
	// Either end's end is both's.
	defer context.AfterFunc(ctx, func() {
		reset(near)
		reset(far)
	})()
	done := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
		go func() {
			defer func() { done <- struct{}{} }()
			l.carry(ctx, way[0], way[1])
			cancel()
		}()
	}
	<-done
	<-done
}

// keep remembers a connection for Set; false means that the line is cut.
func (l *Line) keep(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.state.Cut {
		l.open[c] = true
	}
	return !l.state.Cut
}

func (l *Line) drop(c net.Conn) {
	l.mu.Lock()
	delete(l.open, c)
	l.mu.Unlock()
	c.Close()
}

// carry copies one way, as the line is.
func (l *Line) carry(ctx context.Context, from, to net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		s, _ := l.get()
		piece := buffer
		if s.Rate > 0 {
			piece = buffer[:min(len(buffer), max(1, s.Rate/20))]
		}
		n, err := from.Read(piece)
		if n > 0 {
			if !l.pass(ctx, n) {
				return
			}
			if _, err := to.Write(piece[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// pass waits until n bytes may pass.
func (l *Line) pass(ctx context.Context, n int) bool {
	for {
		s, changed := l.get()
		var wait <-chan time.Time
		switch {
		case s.Silent: // until it changes
		case s.Rate > 0:
			wait = time.After(time.Duration(n) * time.Second / time.Duration(s.Rate))
		default:
			return true
		}
		select {
		case <-wait:
			return true
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}
