package message

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrNoHandler is returned by Dispatch for a message whose topic has no handler.
var ErrNoHandler = errors.New("no handler for this topic")

// Mux leads each message to the handler of its topic. Register every handler before the
// first Dispatch.
//
// It is a list and no map: it has a dozen entries, and a cloud has a Mux for each of its links.
type Mux struct {
	handlers []handler
}

type handler struct {
	key    Key
	handle func(context.Context, Message) error
}

// NewMux returns an empty Mux.
func NewMux() *Mux { return &Mux{} }

// Handle registers the handler of a topic. Two handlers for one topic are a mistake in the wiring
// and panic at once.
func Handle[T any](mux *Mux, topic Topic[T], handle func(ctx context.Context, m Message, content T) error) {
	key := topic.Key()
	if mux.handler(key) != nil {
		panic("message: two handlers for " + key.String())
	}
	mux.handlers = append(mux.handlers, handler{key, func(ctx context.Context, m Message) error {
		content, err := Topic[T]{}.Content(m) // and not that of topic, which the function would keep: a cloud has many Muxes
		if err != nil {
			return err
		}
		return handle(ctx, m, content)
	}})
}

// handler is that of a topic, nil without one.
func (x *Mux) handler(key Key) func(context.Context, Message) error {
	for i := range x.handlers {
		if x.handlers[i].key == key {
			return x.handlers[i].handle
		}
	}
	return nil
}

// Dispatch calls the handler of m's topic and returns its error, ErrNoHandler where
// it has no handler.
func (x *Mux) Dispatch(ctx context.Context, m Message) error {
	handle := x.handler(m.Key())
	if handle == nil {
		return fmt.Errorf("%s: %w", m.Key(), ErrNoHandler)
	}
	return handle(ctx, m)
}

// Keys lists the topics that have a handler, in order.
func (x *Mux) Keys() []Key {
	keys := make([]Key, 0, len(x.handlers))
	for _, h := range x.handlers {
		keys = append(keys, h.key)
	}
	slices.SortFunc(keys, func(a, b Key) int { return strings.Compare(a.String(), b.String()) })
	return keys
}
