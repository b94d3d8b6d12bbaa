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
type Mux struct {
	handlers map[Key]func(context.Context, Message) error
}

// NewMux returns an empty Mux.
func NewMux() *Mux { return &Mux{handlers: map[Key]func(context.Context, Message) error{}} }

// Handle registers the handler of a topic. Two handlers for one topic are a mistake in the wiring
// and panic at once.
func Handle[T any](mux *Mux, topic Topic[T], handle func(ctx context.Context, m Message, content T) error) {
	key := topic.Key()
	if _, ok := mux.handlers[key]; ok {
		panic("message: two handlers for " + key.String())
	}
	mux.handlers[key] = func(ctx context.Context, m Message) error {
		content, err := Topic[T]{}.Content(m) // and not that of topic, which the function would keep: a cloud has many Muxes
		if err != nil {
			return err
		}
		return handle(ctx, m, content)
	}
}

// Dispatch calls the handler of m's topic and returns what it returns, ErrNoHandler where
// there is none.
func (x *Mux) Dispatch(ctx context.Context, m Message) error {
	handle, ok := x.handlers[m.Key()]
	if !ok {
		return fmt.Errorf("%s: %w", m.Key(), ErrNoHandler)
	}
	return handle(ctx, m)
}

// Keys lists the topics that have a handler, in order.
func (x *Mux) Keys() []Key {
	keys := make([]Key, 0, len(x.handlers))
	for k := range x.handlers {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b Key) int { return strings.Compare(a.String(), b.String()) })
	return keys
}
