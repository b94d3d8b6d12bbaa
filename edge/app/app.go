// Package app assembles edgecore: the wiring table, and the parts' dependencies.
//
// It owns only the order in which modules start, and the parts' configuration from edgecore.yaml.
// New opens the store and reads the identity; Run starts everything and ends when ctx does.
//
// It is above 2,500 lines because every part of the device is assembled here, with its settings of
// edgecore.yaml.
package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/common/config"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/logging"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/protocol"
	"github.com/skerry-io/skerry/common/watchdog"
	"github.com/skerry-io/skerry/edge/internal/agents/drain"
	"github.com/skerry-io/skerry/edge/internal/agents/flightrecorder"
	"github.com/skerry-io/skerry/edge/internal/agents/node"
	"github.com/skerry-io/skerry/edge/internal/agents/probation"
	"github.com/skerry-io/skerry/edge/internal/agents/route"
	"github.com/skerry-io/skerry/edge/internal/agents/upgrade"
	"github.com/skerry-io/skerry/edge/internal/agents/vip"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/edgeapi"
	"github.com/skerry-io/skerry/edge/internal/core/edgehub"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/edge/internal/kernel/host/diskkey"
	"github.com/skerry-io/skerry/edge/internal/kernel/host/machineid"
	"github.com/skerry-io/skerry/edge/internal/kernel/network/netwatch"
	edgeapp "github.com/skerry-io/skerry/edge/internal/optional/app"
	"github.com/skerry-io/skerry/edge/internal/optional/applogs"
	"github.com/skerry-io/skerry/edge/internal/optional/console"
	"github.com/skerry-io/skerry/edge/internal/optional/marks"
	"github.com/skerry-io/skerry/edge/internal/optional/nodemetrics"
	"github.com/skerry-io/skerry/edge/internal/optional/statsleader"
	"github.com/skerry-io/skerry/edge/internal/pods/creationorder"
	"github.com/skerry-io/skerry/edge/internal/pods/deviceplugin"
	"github.com/skerry-io/skerry/edge/internal/pods/edged"
	"github.com/skerry-io/skerry/edge/internal/pods/images"
	"github.com/skerry-io/skerry/edge/internal/pods/singleton"
	edgeconfig "github.com/skerry-io/skerry/edge/internal/setup/config"
	"github.com/skerry-io/skerry/edge/internal/setup/join"
	"github.com/skerry-io/skerry/edge/internal/setup/tunnel"
	"github.com/skerry-io/skerry/edge/internal/site/contact"
	"github.com/skerry-io/skerry/edge/internal/site/endpoints"
	"github.com/skerry-io/skerry/edge/internal/site/peers"
	"github.com/skerry-io/skerry/edge/internal/site/protect"
	"github.com/skerry-io/skerry/edge/internal/site/serviceview"
)

const dropIns = "modules.edged.kubeletConfigDir"

// Configuration reads edgecore.yaml and also checks the part that only a module can: the
// KubeletConfiguration, with its drop-in files. The error names every mistake with its line.
func Configuration(file string, data []byte) (*edgeconfig.Config, error) {
	cfg, doc, err := edgeconfig.Read(file, data)
	found, ok := errors.AsType[*config.Error](err)
	if err != nil && (!ok || doc == nil) {
		return nil, err
	}
	var problems []config.Problem
	if found != nil {
		problems = found.Problems
	}
	kubelet := kubeletIn(data)
	if cfg != nil {
		kubelet = cfg.Modules.Edged.Kubelet
		if !cfg.Modules.Edged.Enable {
			kubelet = nil
		}
	}
	var from map[string]string // the drop-in file of a field
	if cfg != nil && kubelet != nil && cfg.Modules.Edged.KubeletConfigDir != "" {
		merged, err := edged.MergeDropIns(kubelet, cfg.Modules.Edged.KubeletConfigDir)
		if err != nil {
			problems = append(problems, config.Problem{Line: doc.Line(dropIns), Path: dropIns, Message: err.Error()})
		}
		kubelet, from = merged.Raw, merged.From
		cfg.Modules.Edged.Kubelet = kubelet
	}
	if kubelet != nil {
		for _, m := range edged.Validate(kubelet) {
			at, text := "modules.edged.kubelet", m.Message
			if m.Field != "" {
				at += "." + m.Field
			}
			top, _, _ := strings.Cut(m.Field, ".")
			if file := from[top]; file != "" {
				at, text = dropIns, file+": "+m.Field+": "+text
			}
			problems = append(problems, config.Problem{Line: doc.Line(at), Path: at, Message: text})
		}
	}
	if len(problems) > 0 {
		slices.SortStableFunc(problems, func(x, y config.Problem) int { return cmp.Compare(x.Line, y.Line) })
		return nil, &config.Error{File: file, Problems: problems}
	}
	return cfg, nil
}

// kubeletIn is the KubeletConfiguration in a file of which some fields can't be read; nil if it is
// missing, or the kubelet is switched off.
func kubeletIn(data []byte) json.RawMessage {
	var file struct {
		Modules struct {
			Edged struct {
				Enable  *bool           `json:"enable"`
				Kubelet json.RawMessage `json:"kubelet"`
			} `json:"edged"`
		} `json:"modules"`
	}
	_ = yaml.Unmarshal(data, &file) // unreadable fields have been reported, and stay zero here
	if e := file.Modules.Edged; e.Enable == nil || *e.Enable {
		return e.Kubelet
	}
	return nil
}

// NodeName is the node's name: asked for, else configured, else the host's own in lower case.
func NodeName(cfg *edgeconfig.Config, asked string) (string, error) {
	name := asked
	if name == "" {
		name = cfg.Modules.Edged.HostnameOverride
	}
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			return "", fmt.Errorf("reading the host's name: %w", err)
		}
		name = strings.ToLower(host)
	}
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		mend := "set modules.edged.hostnameOverride"
		if asked != "" {
			mend = "choose another --node-name"
		}
		return "", fmt.Errorf("node name %q: %s; %s", name, strings.Join(problems, "; "), mend)
	}
	return name, nil
}

// IdentityDir is where the identity is.
func IdentityDir(cfg *edgeconfig.Config) string { return filepath.Join(cfg.DataDir, "identity") }

// BuildTime returns the build time of this program from its file: no relevant certificate is
// verified with an earlier time.
func BuildTime() time.Time {
	path, err := os.Executable()
	if err != nil {
		return time.Time{}
	}
	info, err := os.Stat(path)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// lockWait is for a predecessor that was killed and is not quite gone.
const lockWait = 15 * time.Second

// App is edgecore.
type App struct {
	statusFor func(accept string) (body []byte, contentType string, err error) // set by ShowStatus

	config   *edgeconfig.Config
	file     string       // of the configuration
	log      *logging.Log // set by LogsTo
	node     string
	store    *store.Store
	disk     node.Disk
	clock    *pki.Clock
	identity *join.Identity
	meta     *metamanager.Manager
	// correction is nil if no part of the device reads EndpointSlices.
	correction   *endpoints.Correction
	services     *serviceview.View // nil if no part of the device reads Services
	api          *edgeapi.Server
	registration *node.Registration
	singletons   *singleton.Gate
	dialer       link.Dialer
	hub          *edgehub.Hub
	netwatch     *netwatch.Watcher
	edged        *edged.Module
	routes       *route.Agent
	agents       []*agent.Module
	vips         *vip.Agent
	drain        *drain.Agent
	works        *upgrade.Works // nil where drain is
	switching    switching
	dog          *watchdog.Watchdog
	kept         func() ([]string, error) // images that garbage collection leaves alone; may be nil
	marks        *marks.Agent
	runner       *beehive.Runner
	tunnel       *tunnel.Tunnel
	rescue       *rescue
	protocols    protocol.Window // zero: this release's
	keys         []string        // directories of keys that sign versions
	flight       *flightrecorder.Module
	bundling     sync.Mutex                                             // held while a bundle is packed
	packBundle   func(ctx context.Context, w io.Writer, most int) error // set by ShowStatus
	metrics      *prometheus.Registry
	collectors   []prometheus.Collector // of the parts

	on switched
	// site is nil without dependants, and contact where modules.site is switched off.
	site    *peers.Holder
	contact *contact.Agent
	protect *protect.Networks // addresses that no claim of others may cover
	standIn standIn
	// probation is nil without a link to lose.
	probation *probation.Probation
	moved     chan struct{} // a device of the site may be elsewhere now
	apps      *edgeapp.Agent
	// consoles is nil where modules.console is switched off.
	consoles *console.Consoles
	stats    *statsleader.Leader
	logs     *applogs.Agent
	// nodeMetrics is nil where modules.nodeMetrics is switched off.
	nodeMetrics *nodemetrics.Agent
	order       *creationorder.Module
	images      *images.Server
	devices     *deviceplugin.Module
}

// Option changes an App for programs of tests.
type Option func(*App)

// Speaking has edgecore speak these versions of the link's protocol, as another release does.
func Speaking(w protocol.Window) Option { return func(a *App) { a.protocols = w } }

// TrustingKeys has edgecore trust the keys in that directory, and no others.
func TrustingKeys(dir string) Option { return func(a *App) { a.keys = []string{dir} } }

// standIn is a program that replaces agents of this device.
type standIn struct {
	repeat  func()
	settled func() bool
}

// switching is whether this process ends to execute skerry-launch.
type switching struct {
	mu     sync.Mutex
	cancel context.CancelFunc
	on     bool
}

func (s *switching) begin(cancel context.CancelFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancel = cancel; s.on {
		cancel()
	}
}

func (s *switching) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.on = true; s.cancel != nil {
		s.cancel()
	}
}

// switched are the modules that the NodePool may switch on (edgeconfig.Auto), as they are
// in this process.
type switched struct{ site, services, names bool }

// keepTime keeps the newest time known over a restart, for devices whose clock starts in 1970. It
// is called once a day at most.
func (a *App) keepTime(t time.Time) {
	if a.store != nil {
		_ = a.store.SetLastTime(context.Background(), t) // a full disk: tomorrow's will do
	}
}

// storeConfig is where the store is; key may be nil.
func storeConfig(cfg *edgeconfig.Config, key *diskkey.Key) store.Config {
	file := cfg.Modules.MetaManager.Encryption.KeyFile
	if file == "" {
		file = filepath.Join(cfg.DataDir, "store.key")
	}
	c := store.Config{Path: filepath.Join(cfg.DataDir, "store.db"), KeyFile: file}
	if key != nil {
		c.Key = key.Bytes()
	}
	return c
}

// KubeletTransport answers requests to host as those of this device's kubelet, for programs that
// simulate one. edgecore itself does not use it.
func (a *App) KubeletTransport() (transport http.RoundTripper, host string) {
	return a.api.RoundTripper(edgeapi.Identity{Kubelet: true}), edgeapi.Host
}

// Report reports body to the cloud as this device's entry in the status of an object, for programs
// that replace an agent. edgecore itself does not use it.
func (a *App) Report(ctx context.Context, resource schema.GroupVersionResource, name string, uid types.UID, body []byte) error {
	return a.meta.Report(ctx, object.Ref{Resource: resource, Name: name}, uid, body)
}

// kubelet is where the kubelet's own server is; "" without one.
func (a *App) kubelet() string {
	if a.edged == nil {
		return ""
	}
	return a.edged.Server()
}

// dialKubelet connects to the kubelet as the device's own client.
func (a *App) dialKubelet(ctx context.Context) (net.Conn, error) {
	if a.edged == nil {
		return nil, errors.New("no kubelet runs here: modules.edged.enable is false")
	}
	return a.edged.DialLocal(ctx)
}

// bootID returns the unique ID of this boot (proc(5)).
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}

// machineID is a digest of this machine's name; "" without one.
func machineID(cfg *edgeconfig.Config) string {
	if name := cfg.Modules.EdgeHub.MachineID; name != "" {
		return machineid.Digest(name)
	}
	return machineid.Read("/")
}
