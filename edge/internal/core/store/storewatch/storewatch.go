// Package storewatch ends edgecore once its store has turned out to be damaged, so that it starts
// again on a fresh file with all that can be read of the damaged one. Until then edgecore goes on
// from memory: reads and the link work, writes are refused.
//
// It owns the moment of that end. It refuses to end a device that would lose what it has in memory
// alone. Its module runs once, in one goroutine.
package storewatch

import (
	"context"
	"errors"
	"time"

	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/core/store"
)

// Module is the module "store" of edgecore.
type Module struct {
	store  *store.Store
	linked func() bool
}

// New returns the module of a store; linked reports whether the cloud is there to fill a fresh one.
func New(s *store.Store, linked func() bool) *Module { return &Module{s, linked} }

// Name implements beehive.Module.
func (*Module) Name() message.Name { return "store" }

// ErrDamaged ends edgecore; systemd starts it again, and containers keep running in the meantime.
var ErrDamaged = errors.New("the store was found damaged while in use: edgecore starts again to replace it")

// damagePoll is how often a damaged device looks whether this is the moment to start again.
const damagePoll = 5 * time.Second

// Run implements beehive.Module; its error is ErrDamaged.
func (m *Module) Run(ctx context.Context, port *beehive.Port) error {
	port.Ready()
	select {
	case <-ctx.Done():
		return nil
	case <-m.store.Damaged():
	}
	klog.FromContext(ctx).Error(nil, "The store is damaged; edgecore goes on from memory until it can start again without a loss")
	// The file is read once: nothing is written to it any more.
	keepsAll := m.store.Salvageable()
	tick := time.NewTicker(damagePoll)
	defer tick.Stop()
	for {
		// Without a link a start would leave the kubelet without what can't be read, which is still
		// in memory. With one it comes again from the cloud.
		if keepsAll || m.linked() {
			return ErrDamaged
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
