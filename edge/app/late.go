package app

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/edgehub"
	"github.com/skerry-io/skerry/edge/internal/pods/cri"
	"github.com/skerry-io/skerry/edge/internal/pods/deviceplugin"
	"github.com/skerry-io/skerry/edge/internal/pods/edged"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
	"github.com/skerry-io/skerry/edge/internal/setup/tunnel"
)

// kubelet is the device's kubelet for parts that are made before it, which ask it once they run.
// newPods completes it; its parts stay nil where modules.edged is switched off.
type kubelet struct {
	config  *edgeconfig.Config
	module  *edged.Module
	devices *deviceplugin.Module
}

// server is where the kubelet's own server is; "" without one.
func (k *kubelet) server() string {
	if k.module == nil {
		return ""
	}
	return k.module.Server()
}

// dial connects to the kubelet as the device's own client.
func (k *kubelet) dial(ctx context.Context) (net.Conn, error) {
	if k.module == nil {
		return nil, errors.New("no kubelet runs here: modules.edged.enable is false")
	}
	return k.module.DialLocal(ctx)
}

// runtimeProblem checks the health of the container runtime; nil where there is no kubelet.
func (k *kubelet) runtimeProblem(ctx context.Context) error {
	if k.module == nil {
		return nil
	}
	return cri.Health(ctx, k.module.Runtime())
}

// images is where edgecore's own modules pull images: as the kubelet does, so that they are on the
// disk; "" without a kubelet.
func (k *kubelet) images() string {
	if k.module == nil {
		return ""
	}
	return cmp.Or(imageService(k.config), k.module.Images())
}

// imagesSocket is the kubelet's image service endpoint, next to the socket of the edge API.
func imagesSocket(c *edgeconfig.Config) string {
	return strings.TrimSuffix(c.Modules.EdgeAPI.Socket, ".sock") + "-images.sock"
}

// runtimeSocket is the kubelet's link to the socket of the container runtime, next to the socket of
// the edge API.
func runtimeSocket(c *edgeconfig.Config) string {
	return strings.TrimSuffix(c.Modules.EdgeAPI.Socket, ".sock") + "-runtime.sock"
}

// runtimeService is the endpoint at which the kubelet finds the container runtime: where the device
// has no socket of its own, the runtime's.
func runtimeService(c *edgeconfig.Config) string {
	if c.Modules.EdgeAPI.Socket == "" {
		return ""
	}
	return "unix://" + runtimeSocket(c)
}

// imageService is the endpoint at which the kubelet finds images: where the device has no socket of
// its own, the container runtime's.
func imageService(c *edgeconfig.Config) string {
	if c.Modules.EdgeAPI.Socket == "" {
		return ""
	}
	return "unix://" + imagesSocket(c)
}

// uplink is the link to the cloud for parts that are made before it. newLink completes it; its
// parts stay nil where modules.edgeHub is switched off.
type uplink struct {
	hub    *edgehub.Hub
	tunnel *tunnel.Tunnel
}

func (u *uplink) linked() bool { return u.hub != nil && u.hub.Status().Linked }

// lastContact reports whether there is a link, and the time of the last contact with the cloud.
func (u *uplink) lastContact() (linked bool, last time.Time) {
	if u.hub == nil {
		return false, time.Time{}
	}
	s := u.hub.Status()
	if s.Linked {
		return true, time.Now()
	}
	return false, s.LastContact
}

// open asks the cloud for a stream.
func (u *uplink) open(ctx context.Context, target string) (net.Conn, error) {
	if u.tunnel == nil {
		return nil, errors.New("modules.edgeHub is switched off")
	}
	return u.tunnel.Open(ctx, target)
}

// reporters are the agents whose state `edgecore status` shows, in the order in which they start.
// Each wing adds its own.
type reporters struct {
	agents []*agent.Module
	// Of a program that replaces agents of this device; may be nil.
	repeatOthers  func()
	othersSettled func() bool
}

func (r *reporters) add(m *agent.Module) *agent.Module {
	r.agents = append(r.agents, m)
	return m
}

// repeat makes the agents repeat all reports on this node.
func (r *reporters) repeat() {
	if r.repeatOthers != nil {
		r.repeatOthers()
	}
	for _, m := range r.agents {
		m.Repeat()
	}
}

// settled reports whether all reports of the agents are in the outbox.
func (r *reporters) settled() bool {
	if r.othersSettled != nil && !r.othersSettled() {
		return false
	}
	return !slices.ContainsFunc(r.agents, func(m *agent.Module) bool {
		s := m.State()
		return s.Syncs == 0 && s.Waiting == "" || s.Unreported > 0
	})
}
