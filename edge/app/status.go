package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/common/logging"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/version"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
	"github.com/skerry-io/skerry/edge/internal/agents/node"
	"github.com/skerry-io/skerry/edge/internal/agents/route"
	"github.com/skerry-io/skerry/edge/internal/agents/vip"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/edgeapi"
	"github.com/skerry-io/skerry/edge/internal/core/edgehub"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/edge/internal/kernel/host/diskkey"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netif"
	edgeapp "github.com/skerry-io/skerry/edge/internal/optional/app"
	"github.com/skerry-io/skerry/edge/internal/optional/applogs"
	"github.com/skerry-io/skerry/edge/internal/optional/console"
	"github.com/skerry-io/skerry/edge/internal/optional/marks"
	"github.com/skerry-io/skerry/edge/internal/optional/nodemetrics"
	"github.com/skerry-io/skerry/edge/internal/optional/statsleader"
	"github.com/skerry-io/skerry/edge/internal/pods/podhealth"
	"github.com/skerry-io/skerry/edge/internal/setup/bundle"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
	"github.com/skerry-io/skerry/edge/internal/setup/join"
	"github.com/skerry-io/skerry/edge/internal/setup/tunnel"
	"github.com/skerry-io/skerry/edge/internal/site/contact"
	"github.com/skerry-io/skerry/edge/internal/site/podnet"
	"github.com/skerry-io/skerry/edge/internal/site/sharing"
)

// StatusPath is where the running edgecore answers Status, on its unix socket.
const StatusPath = "/skerry/v1/status"

// Status is the part of `edgecore status`. Parts that the process doesn't have are nil.
type Status struct {
	Node       string          `json:"node"`
	Running    bool            `json:"running"`
	Version    string          `json:"version"`
	Kubernetes string          `json:"kubernetes"`
	At         time.Time       `json:"at"`
	Link       *edgehub.Status `json:"link,omitempty"`
	Identity   *join.Status    `json:"identity,omitempty"`
	ClockSkew  time.Duration   `json:"clockSkewNanoseconds"` // how far the device's clock is ahead of the cloud's
	Kubelet    string          `json:"kubelet"`              // "running", or the reason why it waits
	// Runtime is the problem of the container runtime, "" for a healthy one.
	Runtime string `json:"runtime,omitempty"`
	// KubeletNotes are what edgecore had to do for the kubelet to run, with the time.
	KubeletNotes []string `json:"kubeletNotes,omitempty"`
	// NodeProblems are the problems in the Node's conditions.
	NodeProblems []string          `json:"nodeProblems,omitempty"`
	Pods         *podhealth.Status `json:"pods,omitempty"`
	// Unresponsive: an edgecore has the lock of the store and does not answer.
	Unresponsive bool                   `json:"unresponsive,omitempty"`
	Data         *metamanager.Status    `json:"data,omitempty"`
	Disk         *node.DiskStatus       `json:"disk,omitempty"`
	Routes       *route.Status          `json:"routes,omitempty"`
	VIPs         *vip.Status            `json:"vips,omitempty"`
	Drain        *drain.State           `json:"drain,omitempty"`
	Marks        *marks.Status          `json:"marks,omitempty"`
	Apps         *edgeapp.Status        `json:"apps,omitempty"`
	Stats        *statsleader.Status    `json:"clusterStats,omitempty"`
	Logs         *applogs.Status        `json:"appLogs,omitempty"`
	NodeMetrics  *nodemetrics.Status    `json:"nodeMetrics,omitempty"`
	Site         *contact.State         `json:"site,omitempty"`
	Programs     *sharing.State         `json:"programs,omitempty"`
	Consoles     []console.State        `json:"consoles,omitempty"`
	Modules      []beehive.ModuleHealth `json:"modules,omitempty"`
	Agents       []agent.State          `json:"agents,omitempty"`
}

// Status is how the running edgecore is.
func (a *App) Status() Status {
	s := Status{Node: a.node, Running: true, Version: version.Skerry(), Kubernetes: version.Kubernetes(), At: time.Now().UTC(), ClockSkew: a.clock.Skew()}
	s.Link = of(a.link.hub, (*edgehub.Hub).Status)
	s.Identity = of(a.identity, (*join.Identity).Status)
	s.Data = of(a.core.meta, (*metamanager.Manager).Status)
	s.Disk = of(&a.disk, (*node.Disk).Status)
	s.Routes = of(a.agents.routes, (*route.Agent).Status)
	s.VIPs = of(a.agents.vips, (*vip.Agent).Status)
	s.Drain = of(a.agents.drain, (*drain.Agent).Status)
	s.Marks = of(a.optional.marks, (*marks.Agent).Status)
	s.Apps = of(a.optional.apps, (*edgeapp.Agent).Status)
	s.Stats = of(a.optional.stats, (*statsleader.Leader).Status)
	s.Logs = of(a.optional.logs, (*applogs.Agent).Status)
	s.NodeMetrics = of(a.optional.nodeMetrics, (*nodemetrics.Agent).Status)
	s.Site = of(a.site.contact, (*contact.Agent).State)
	s.Programs = a.site.shared()
	if a.link.consoles != nil {
		s.Consoles = a.link.consoles.List()
	}
	s.KubeletNotes = a.kubelet.module.Notes()
	s.Modules = a.runner.Health()
	for _, m := range a.reporters.agents {
		s.Agents = append(s.Agents, m.State())
	}
	ctx, cancel := context.WithTimeout(context.Background(), podsTimeout)
	defer cancel()
	s.Pods, s.NodeProblems = podhealth.Read(ctx, a.core.meta, a.node, s.At)
	if err := a.kubelet.runtimeProblem(ctx); err != nil {
		s.Runtime = err.Error()
	}
	switch {
	case a.kubelet.module == nil:
		s.Kubelet = "switched off"
	case a.kubelet.module.Waiting() != nil:
		s.Kubelet = "waits: " + a.kubelet.module.Waiting().Error()
	case a.core.meta.KubeletAlive():
		s.Kubelet = "running"
	default:
		s.Kubelet = "has not renewed its Lease in time; after a start the first comes within some 10 s"
	}
	return s
}

// of is the status of a part, nil where there is no such part.
func of[P, S any](part *P, status func(*P) S) *S {
	if part == nil {
		return nil
	}
	s := status(part)
	return &s
}

// ShowStatus allows the cloud to request the status, and bundles: for users as rendered by text, in
// the words of this version of edgecore, else as JSON. It is called before Run.
func (a *App) ShowStatus(text func(io.Writer, Status) error) {
	a.packBundle = a.WriteBundle
	a.statusFor = func(accept string) (body []byte, contentType string, err error) {
		if accept != "text/plain" {
			body, err = json.Marshal(a.Status())
			return body, "application/json", err
		}
		var shown bytes.Buffer
		err = text(&shown, a.Status())
		return shown.Bytes(), accept, err
	}
}

// streams are the answers about this device for the cloud.
func (a *App) streams() tunnel.Config {
	c := tunnel.Config{
		Kubelet: a.kubelet.server, Rehearsal: a.rehearsed, Recorder: a.recorded,
		Status: func(accept string) ([]byte, string, error) {
			if a.statusFor == nil {
				return nil, "", errors.New("this program shows no status")
			}
			return a.statusFor(accept)
		},
		Bundle: func(ctx context.Context, w io.Writer) error {
			if a.packBundle == nil {
				return errors.New("this program packs no bundle")
			}
			return a.packBundle(ctx, w, bundle.MaxFileOverLink)
		},
	}
	if a.config.Modules.Tunnel.Subresources {
		c.Subresources = a.kubelet.dial
	}
	return c
}

// local serves the requests of edgecore's commands to the running process, only on the unix socket.
func (a *App) local() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+StatusPath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(a.Status()) // an error means that the client is gone
	})
	mux.HandleFunc("PUT "+MaintenancePath, a.handleMaintenance)
	mux.HandleFunc("GET "+BundlePath, a.handleBundle)
	mux.HandleFunc("PUT "+logging.Path, a.handleLog)
	mux.HandleFunc("GET "+RehearsalPath, a.handleRehearsal)
	a.handleOperations(mux)
	a.handleConsoles(mux)
	return mux
}

// ErrUnresponsive is StatusOfFiles' where an edgecore runs that does not answer.
var ErrUnresponsive = errors.New("edgecore runs and does not answer: it is busy, or was stopped (kill -CONT, systemctl status edgecore)")

// StatusOfFiles returns the status from a device's files while edgecore does not run. It only reads
// them.
func StatusOfFiles(ctx context.Context, cfg *edgeconfig.Config) (Status, error) {
	s := Status{Version: version.Skerry(), Kubernetes: version.Kubernetes(), At: time.Now().UTC()}
	key, err := readDiskKey(ctx, cfg)
	if err != nil {
		return s, err
	}
	identity, err := join.Load(IdentityDir(cfg), sealer(key), pki.NewClock(BuildTime(), nil))
	if err != nil {
		return s, err
	}
	s.Node = string(identity.Node())
	status := identity.Status()
	s.Identity = &status
	disk := node.NewDisk(cfg.DataDir, nil).Status()
	s.Disk = &disk
	if l, err := TakeLock(cfg); errors.Is(err, ErrRuns) {
		s.Unresponsive = true
		return s, ErrUnresponsive // its store can't be read by a second process
	} else if err == nil {
		l.Release()
	}
	if _, err := os.Stat(storeConfig(cfg, key).Path); err != nil {
		return s, nil //nolint:nilerr // no store yet: it has joined and never run
	}
	file, err := store.Open(ctx, storeConfig(cfg, key))
	if err != nil {
		return s, err
	}
	defer func() { _ = file.Close() }()
	data, err := metamanager.StatusOf(file)
	s.Data = &data
	if err != nil {
		return s, err
	}
	state, err := drain.StateIn(file)
	s.Drain = state
	return s, err
}

// EventsOfFiles are the Events on the disk of a device on which no edgecore runs.
func EventsOfFiles(ctx context.Context, cfg *edgeconfig.Config) ([]corev1.Event, error) {
	key, err := readDiskKey(ctx, cfg)
	if err != nil {
		return nil, err
	}
	file, err := openStopped(ctx, cfg, key)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	all, err := metamanager.EventsOf(file)
	items := make([]corev1.Event, 0, len(all))
	for _, e := range all {
		items = append(items, *e)
	}
	return items, err
}

// openStopped opens the store of a device on which no edgecore runs. The error is fs.ErrNotExist
// before the first start.
func openStopped(ctx context.Context, cfg *edgeconfig.Config, key *diskkey.Key) (*store.Store, error) {
	l, err := TakeLock(cfg)
	if errors.Is(err, ErrRuns) {
		return nil, ErrUnresponsive // its store can't be read by a second process
	} else if err == nil {
		l.Release()
	}
	if _, err := os.Stat(storeConfig(cfg, key).Path); err != nil {
		return nil, err
	}
	return store.Open(ctx, storeConfig(cfg, key))
}

// OwnFiles are patterns of the files that edgecore creates: its identity, the store with all other
// state, the key of its kubelet's server, the kubeconfig by which root reaches the device's API,
// and the configuration of the pods' network.
func OwnFiles(cfg *edgeconfig.Config) []string {
	at := storeConfig(cfg, nil)
	// The key and certificate of the kubelet's server: the rest of its directory is about
	// containers, which stay.
	server := kubeletKeys(cfg)
	if server == "" {
		server = filepath.Join(cfg.Modules.Edged.RootDir, "pki")
	}
	return []string{
		filepath.Join(server, "kubelet-server-*.pem"), filepath.Join(server, "kubelet.crt"), filepath.Join(server, "kubelet.key"),
		IdentityDir(cfg), at.Path + "*", at.KeyFile, filepath.Join(keysDir(cfg), edgeapi.KubeconfigFile), filepath.Join(cfg.DataDir, hookDir), filepath.Join(cfg.DataDir, contentDir), FlightRecorder(cfg), MetricsToken(cfg), samplesFile(cfg) + "*",
		filepath.Join(netif.CNIConfigs, podnet.File),
	}
}
