package app

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/access/artefacts"
	"github.com/skerry-io/skerry/cloud/internal/access/rescue"
	"github.com/skerry-io/skerry/cloud/internal/access/tunnel"
	"github.com/skerry-io/skerry/cloud/internal/controllers/drain"
	"github.com/skerry-io/skerry/common/protocol"
)

// accessWing is the access to devices' kubelets, consoles and metrics, and devices' access to
// programs.
type accessWing struct {
	wing
	rescue  *rescue.Part
	tunnel  *tunnel.Tunnel // nil without a listener
	release func()         // may be nil
}

func newAccess(c *cluster, trust *trustWing, core *coreWing, p *ports) (_ *accessWing, err error) {
	programs := artefacts.New(c.config.Artefacts.Dir)
	w := &accessWing{
		// For devices whose protocol cloudcore does not support.
		rescue: rescue.New(rescue.Config{
			Client: c.client, Protocols: protocol.Ours(), Artefact: programs.Accept, Prefix: artefacts.Prefix, Merge: drain.Merge,
		}),
	}
	w.collectors = append(w.collectors, programs)
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if p.tunnel != nil {
		t, part, err := newTunnel(c, trust, core, p, programs)
		if err != nil {
			return nil, err
		}
		w.tunnel = t
		w.add(part)
	}
	if p.usage != nil {
		s, err := newUsage(c, trust.ca, core.informers, w.tunnel, p.usage)
		if err != nil {
			return nil, err
		}
		w.release = s.release
		w.entries = append(w.entries, serving("usage", s.serve))
	}
	if p.subresources != nil {
		s, err := newSubresources(c.client.Kubernetes(), trust.ca, w.tunnel, p.subresources)
		if err != nil {
			return nil, err
		}
		w.entries = append(w.entries, serving("subresources", s.serve))
	}
	if p.usage != nil || p.subresources != nil {
		w.entries = append(w.entries, restarted("apiservices", func(ctx context.Context) error { return keepBundles(ctx, c.client.Kubernetes(), trust.ca) }))
	}
	return w, nil
}

// busy reports whether a node has open streams.
func (w *accessWing) busy(node types.NodeName) bool { return w.tunnel != nil && w.tunnel.Busy(node) }

func (w *accessWing) close() {
	if w.release != nil {
		w.release()
	}
}
