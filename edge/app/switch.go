package app

import (
	"context"
	"errors"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
	"github.com/skerry-io/skerry/edge/internal/site/peers"
)

// switched are the modules that the NodePool may switch on (edgeconfig.Auto), as they are
// in this process.
type switched struct{ site, services, names bool }

// switches returns the desired switches, according to the known and stored site. A site that the
// cloud has not described yet switches no module on. One that a full disk does not take is ignored:
// the next edgecore would begin with the previous one, receive this one and end again, forever.
func switches(cfg *edgeconfig.Config, site *peers.Holder) switched {
	c := cfg.Modules
	pool := false
	if site != nil && c.EdgeAPI.Enable {
		s := site.Kept()
		pool = s != nil && s.PodSubnets
	}
	return switched{c.Site.Enable.Is(pool), c.Services.Enable.Is(pool), c.Names.Enable.Is(pool)}
}

// followsPool reports whether anything depends on the NodePool.
func followsPool(cfg *edgeconfig.Config) bool {
	c := cfg.Modules
	for _, s := range []edgeconfig.Switch{c.Site.Enable, c.Services.Enable, c.Names.Enable} {
		if s == edgeconfig.Auto {
			return true
		}
	}
	return false
}

// switchModule ends edgecore when its NodePool requires other modules than those that run:
// Kubernetes' proxy can't be stopped, and the kubelet reads its name server when it starts.
// edgecore is restarted with them; containers keep running.
type switchModule struct {
	config *edgeconfig.Config
	site   *peers.Holder
	on     switched
}

func (*switchModule) Name() message.Name { return "switch" }

var errSwitched = errors.New("podSubnets of this device's NodePool was set or removed: restarting edgecore with other modules")

func (m *switchModule) Run(ctx context.Context, port *beehive.Port) error {
	changed := m.site.Changed()
	port.Ready()
	for {
		if switches(m.config, m.site) != m.on {
			return errSwitched
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}
