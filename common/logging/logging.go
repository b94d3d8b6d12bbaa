// Package logging is the log of a program: text as klog writes it, or JSON by log/slog.
//
// It owns the verbosity of the program and of its modules, which may be changed while it runs, and
// the bound on repeats: a message with the same values is written a few times a minute, then
// counted. It refuses to log the bodies of requests, at any verbosity, and to queue: a message is
// written before its call returns. A Log's methods and its logger may be used by many goroutines at
// once.
package logging

import (
	"fmt"
	"hash/maphash"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2/textlogger"
)

// Formats are the values of log.format.
func Formats() []string { return []string{"text", "json"} }

const (
	// MaxVerbosity is the highest verbosity, as klog's.
	MaxVerbosity = 10
	// burst is how often a message with the same values is written in a window.
	burst  = 5
	window = time.Minute
	// maxSeen bounds the messages that are remembered. At the bound all are forgotten, so that
	// each may be written a few times more.
	maxSeen = 2048
	// maxModules bounds the modules with a verbosity of their own.
	maxModules = 64
	// moduleKey is the key of the module in a logger's values (package beehive).
	moduleKey = "module"
)

// Config configures a Log.
type Config struct {
	Format    string // text or json; "" means text
	Verbosity int
	Output    io.Writer
}

// Log is the log of a program.
type Log struct {
	seed maphash.Seed
	now  func() time.Time

	mu      sync.Mutex
	all     int            // the verbosity
	modules map[string]int // of modules that have their own
	seen    map[uint64]*repeats
}

// repeats counts one message.
type repeats struct {
	since      time.Time // begin of the window
	written    int
	suppressed int
}

// New returns a Log, and the logger that writes to it.
func New(c Config) (*Log, logr.Logger) {
	l := &Log{seed: maphash.MakeSeed(), now: time.Now, all: c.Verbosity, modules: map[string]int{}, seen: map[uint64]*repeats{}}
	var to logr.LogSink
	if c.Format == "json" {
		to = logr.FromSlogHandler(slog.NewJSONHandler(c.Output, &slog.HandlerOptions{Level: slog.Level(-MaxVerbosity), AddSource: true, ReplaceAttr: attribute})).GetSink()
	} else {
		to = textlogger.NewLogger(textlogger.NewConfig(textlogger.Verbosity(MaxVerbosity), textlogger.Output(c.Output))).GetSink()
	}
	return l, logr.New(&sink{log: l, to: to})
}

// attribute has JSON name the file and line alone, and the level as klog's letters do.
func attribute(groups []string, a slog.Attr) slog.Attr {
	if len(groups) > 0 {
		return a
	}
	switch v := a.Value.Any().(type) {
	case *slog.Source:
		return slog.String("caller", fmt.Sprintf("%s:%d", last(v.File), v.Line))
	case slog.Level:
		switch {
		case v >= slog.LevelError:
			return slog.String(slog.LevelKey, "error")
		case v < 0:
			return slog.Group("", slog.String(slog.LevelKey, "info"), slog.Int("v", int(-v)))
		}
		return slog.String(slog.LevelKey, "info")
	}
	return a
}

// last is a path's last two elements.
func last(path string) string {
	slashes := 0
	for i, b := range slices.Backward([]byte(path)) {
		if b == '/' {
			if slashes++; slashes == 2 {
				return path[i+1:]
			}
		}
	}
	return path
}

// Set changes the verbosity of a module, or of all that have none of their own where module is "".
func (l *Log) Set(module string, verbosity int) error {
	if verbosity < 0 || verbosity > MaxVerbosity {
		return fmt.Errorf("verbosity: %d is not 0 to %d", verbosity, MaxVerbosity)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if module == "" {
		l.all = verbosity
		clear(l.modules)
		return nil
	}
	if _, ok := l.modules[module]; !ok && len(l.modules) >= maxModules {
		return fmt.Errorf("module: %d modules have a verbosity of their own already; set that of all first", maxModules)
	}
	l.modules[module] = verbosity
	return nil
}

func (l *Log) enabled(module string, level int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if own, ok := l.modules[module]; ok {
		return level <= own
	}
	return level <= l.all
}

// admit reports whether a message is written, and how many like it were not.
func (l *Log) admit(level int, err error, msg string, values []any) (suppressed int, ok bool) {
	var h maphash.Hash
	h.SetSeed(l.seed)
	fmt.Fprint(&h, level, "\x00", err, "\x00", msg)
	for _, v := range values {
		fmt.Fprint(&h, "\x00", v)
	}
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.seen[h.Sum64()]
	if r == nil {
		if len(l.seen) >= maxSeen {
			clear(l.seen)
		}
		r = &repeats{since: now}
		l.seen[h.Sum64()] = r
	}
	if now.Sub(r.since) >= window || now.Before(r.since) {
		suppressed = r.suppressed
		*r = repeats{since: now}
	}
	if r.written >= burst {
		r.suppressed++
		return 0, false
	}
	r.written++
	return suppressed, true
}

// sink is a logr.LogSink in front of another.
type sink struct {
	log    *Log
	to     logr.LogSink
	module string
	values []any // of the logger
}

var _ logr.CallDepthLogSink = (*sink)(nil)

// Init implements logr.LogSink.
func (s *sink) Init(info logr.RuntimeInfo) {
	info.CallDepth++ // this sink's
	s.to.Init(info)
}

// Enabled implements logr.LogSink.
func (s *sink) Enabled(level int) bool { return s.log.enabled(s.module, level) }

// Info implements logr.LogSink.
func (s *sink) Info(level int, msg string, values ...any) {
	values = withoutBody(msg, values)
	if suppressed, ok := s.log.admit(level, nil, msg, slices.Concat(s.values, values)); ok {
		s.to.Info(level, msg, counted(values, suppressed)...)
	}
}

// Error implements logr.LogSink.
func (s *sink) Error(err error, msg string, values ...any) {
	if suppressed, ok := s.log.admit(-1, err, msg, slices.Concat(s.values, values)); ok {
		s.to.Error(err, msg, counted(values, suppressed)...)
	}
}

// withoutBody has the size in place of a body that client-go logs from verbosity 8 on: it may be a
// Secret, or a token.
func withoutBody(msg string, values []any) []any {
	if msg != "Request Body" && msg != "Response Body" {
		return values
	}
	values = slices.Clone(values)
	for i := 0; i+1 < len(values); i += 2 {
		if body, ok := values[i+1].(string); ok && values[i] == "body" {
			values[i+1] = fmt.Sprintf("(%d bytes, left out: it may have secrets)", len(body))
		}
	}
	return values
}

func counted(values []any, suppressed int) []any {
	if suppressed == 0 {
		return values
	}
	return append(slices.Clone(values), "suppressedRepeats", suppressed)
}

// WithValues implements logr.LogSink.
func (s *sink) WithValues(values ...any) logr.LogSink {
	c := *s
	c.to, c.values = s.to.WithValues(values...), slices.Concat(s.values, values)
	for i := 0; i+1 < len(values); i += 2 {
		if values[i] == moduleKey {
			c.module = fmt.Sprint(values[i+1])
		}
	}
	return &c
}

// WithName implements logr.LogSink.
func (s *sink) WithName(name string) logr.LogSink {
	c := *s
	c.to = s.to.WithName(name)
	return &c
}

// WithCallDepth implements logr.CallDepthLogSink.
func (s *sink) WithCallDepth(depth int) logr.LogSink {
	c := *s
	if deeper, ok := s.to.(logr.CallDepthLogSink); ok {
		c.to = deeper.WithCallDepth(depth)
	}
	return &c
}
