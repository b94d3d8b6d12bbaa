package app

import (
	"context"
	"net/http"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/agents/apiredirect"
	"github.com/skerry-io/skerry/edge/internal/agents/node"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/edgeapi"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager/podgate"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store/storewatch"
	"github.com/skerry-io/skerry/edge/internal/kernel/netfilter/redirect"
	"github.com/skerry-io/skerry/edge/internal/pods/singleton"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
)

// coreWing has the objects that the device holds, and its API.
type coreWing struct {
	meta         *metamanager.Manager
	api          *edgeapi.Server
	registration *node.Registration
	singletons   *singleton.Gate
}

// newCore makes the metamanager and the edge API, which also serves local's paths on its socket.
func newCore(b *base, r *reporters, k *kubelet, corrector object.Corrector, local http.Handler) *coreWing {
	c := b.config.Modules
	limit := c.MetaManager.EventLimit
	w := &coreWing{}
	w.singletons = singleton.New(func() singleton.Manager { return w.meta }, b.memory(singleton.Name), bootID())
	w.meta = metamanager.New(metamanager.Config{
		Gate: podgate.Gate{w.singletons.Rule, func(p *corev1.Pod) string { return k.devices.Withholds(p) }}, PodsConfirmed: w.singletons.Confirmed,
		NodeName: b.node, Store: b.store, ReportEvents: c.Edged.ReportEvent, Corrector: corrector,
		Limits: metamanager.Limits{OutboxEvents: limit.Entries, OutboxBytes: int(limit.Bytes.Value())},
	})
	w.registration = node.NewRegistration(w.meta, b.node, b.memory(node.RegistrationName), r.repeat)
	if b.store != nil { // else the wiring is only shown
		if err := w.registration.Load(); err != nil {
			klog.Background().Error(err, "Failed to read the saved settings of the Node")
		}
		if err := w.singletons.Load(); err != nil {
			klog.Background().Error(err, "Failed to read whether the cloud has confirmed the pods of this boot")
		}
	}
	w.api = edgeapi.New(edgeapi.Config{
		NodeName: b.node, Backend: w.meta, State: b.store.Module(string(edgeapi.Name)), DataDir: keysDir(b.config), Socket: c.EdgeAPI.Socket, Listen: c.EdgeAPI.Listen, Pods: podsListen(c.EdgeAPI),
		Local: local, Register: w.registration.Register, DialKubelet: k.dial,
	})
	return w
}

// client is the configuration of a client of the edge API.
func (w *coreWing) client() *rest.Config { return w.api.ClientConfig(edgeapi.Identity{}) }

// recorder opens the recorder of events of an agent.
func (w *coreWing) recorder(name message.Name) func(ctx context.Context) (agent.Recorder, error) {
	return func(ctx context.Context) (agent.Recorder, error) { return w.api.StartRecorder(ctx, string(name)) }
}

// objects are the modules of the objects and of the Node.
func (w *coreWing) objects(b *base, k *kubelet) []beehive.Entry {
	client := w.client()
	return []beehive.Entry{
		restarted(w.meta, linkstate.Group),
		restarted(w.singletons),
		restarted(w.registration), // also if the device serves no API: its Node may be deleted nevertheless
		{Module: storewatch.New(b.store, w.meta.Linked), Restart: beehive.Never()},
		restarted(node.NewDiskModule(b.disk, b.node, client)),
		restarted(node.NewRestorer(w.meta, b.node, func() bool { return w.meta.KubeletAlive() && !k.module.Stopped() })),
		restarted(node.NewLostSettingsModule(w.registration.Problem, b.node, client, w.recorder("registration"))),
		restarted(node.NewPodsModule(podsProblem(b.node, w.meta, k), b.node, client)),
		restarted(node.NewSkewModule(w.meta.Linked, w.meta.Request, b.node, client)),
	}
}

// serving is the edge API.
func (w *coreWing) serving(b *base, r *reporters) []beehive.Entry {
	c := b.config.Modules.EdgeAPI
	if !c.Enable {
		return nil
	}
	return []beehive.Entry{restarted(w.api), restarted(r.add(w.newAPIRedirect(c)))}
}

// newAPIRedirect makes the agent that redirects pods to the edge API, or removes the redirection.
func (w *coreWing) newAPIRedirect(c edgeconfig.EdgeAPI) *agent.Module {
	at, _ := netip.ParseAddrPort(podsListen(c)) // validation has refused invalid addresses
	return apiredirect.New(apiredirect.Config{API: w.client(), Redirect: redirect.New(), Listen: at, Serve: w.api.ServePods})
}

// podsListen is where the edge API serves pods; "" where it does not.
func podsListen(c edgeconfig.EdgeAPI) string {
	if !c.Pods {
		return ""
	}
	return c.PodsListen
}
