// Package storewatch ends edgecore once its store has turned out to be damaged, so that it restarts
// on a fresh file with all readable records of the damaged one. Until then edgecore runs from
// memory: reads and the link work, writes are refused.
//
// It owns the moment of that end. It refuses to end a device that would lose state which is only in
// memory. Its module runs once, in one goroutine.
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

// New returns the module of a store; linked reports whether there is a link to refill a fresh one.
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
	klog.FromContext(ctx).Error(nil, "Store is damaged, running from memory until edgecore can restart without a loss")
	// The file is read once: it is no longer written to.
	keepsAll := m.store.Salvageable()
	tick := time.NewTicker(damagePoll)
	defer tick.Stop()
	for {
		// Without a link a restart would leave the kubelet without the unreadable objects, which
		// are still in memory. With a link the cloud delivers them again.
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
