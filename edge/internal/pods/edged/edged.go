// Package edged runs the kubelet: the upstream one, unmodified, inside edgecore, with the edge API
// as its API server.
//
// It owns the kubelet's configuration, the preconditions of its start, and the kubelet's global
// state (feature gates, metrics, logging): these are set here and nowhere else. So there is one
// kubelet a process, run once: after a failure the process has to be restarted (Restart Never). It
// refuses a configuration that the kubelet would refuse, before anything is started. Containers
// keep running when it stops. A Module is used by one goroutine, except Waiting, Notes and Stop.
package edged

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/encoding"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // the kubelet's command registers the same metrics
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kubelet/app"
	"k8s.io/kubernetes/cmd/kubelet/app/options"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/pods/cri"
	"github.com/skerry-io/skerry/edge/internal/pods/pluginwatch"
)

// Name is the module's address on the bus. It receives no messages.
const Name message.Name = "edged"

// Config has the kubelet's settings outside of its KubeletConfiguration.
type Config struct {
	NodeName string
	Labels   map[string]string // of the Node, when it registers
	RootDir  string            // "": the kubelet's default
	NodeIP   string            // "": the kubelet chooses
	CertDir  string            // for the key and certificate of the kubelet's server; "": pki in RootDir
	// Kubelet is a KubeletConfiguration, YAML or JSON; apiVersion and kind are optional.
	Kubelet []byte
	// ClusterDNS and ClusterDomain are the name servers and the domain of pods, if the
	// KubeletConfiguration doesn't set them.
	ClusterDNS    []string
	ClusterDomain string
	// ClientCAFile has the CAs of clients of the kubelet's own server, if the KubeletConfiguration
	// doesn't set it.
	ClientCAFile string
	// Verbosity of klog, if the KubeletConfiguration doesn't set it.
	Verbosity int
	// Host and Transport connect to the API, with the kubelet's identity.
	Host      string
	Transport http.RoundTripper
	// Share gets each Service that the kubelet watches, and returns it or one that is equal for the
	// kubelet, which others hold; nil: the kubelet holds its own.
	Share func(*corev1.Service) *corev1.Service
	// Hold gives the reason no kubelet may start now, nil where one may; nil: always. It is asked
	// until one may.
	Hold func(context.Context) error
	// ImageService is the endpoint at which the kubelet finds the images of the container runtime
	// (edge/internal/pods/images); "": the kubelet asks the runtime itself.
	ImageService string
	// RuntimeService is the endpoint at which the kubelet finds the container runtime until Stop:
	// this module makes a link there. "": the kubelet asks the runtime itself, and may start
	// containers after Stop.
	RuntimeService string
	// Linked reports whether there is a link to the cloud; nil: always.
	Linked func() bool
	// Events opens a recorder of events, for Notes; nil: they are only logged.
	Events func(ctx context.Context) (agent.Recorder, error)
	// Needs are further preconditions of the kubelet's start. Each is called until its error is
	// nil; its error names the action needed.
	Needs []func(ctx context.Context) error
	// ImageCredentialProviderConfig and ImageCredentialProviderBinDir are the kubelet's flags
	// --image-credential-provider-config and --image-credential-provider-bin-dir.
	ImageCredentialProviderConfig string
	ImageCredentialProviderBinDir string
}

// Module is the kubelet as a module.
type Module struct {
	config   Config
	server   *options.KubeletServer
	local    *localClient
	gate     *gate
	periods  []Period
	runtime  string       // the container runtime's own endpoint
	access   *runtimeGate // the kubelet's, to it; nil: the kubelet asks it itself
	images   string       // the container runtime's own image service
	machine  func() (*machineInfo, error)
	notes    *notes
	resolver *resolver // nil: pods get no name servers of the device
	streams  *cri.Streams

	mu      sync.Mutex
	ran     bool
	waiting error
}

// New checks the configuration. It starts no goroutine and changes no global state.
func New(config Config) (*Module, error) {
	server, err := newServer(config)
	if err != nil {
		return nil, err
	}
	local, err := newLocalClient()
	if err != nil {
		return nil, err
	}
	m := &Module{config: config, server: server, local: local, gate: newGate(config.Transport), machine: readMachine, streams: cri.NewStreams(), notes: &notes{node: config.NodeName, events: config.Events}, periods: takePeriods(&server.KubeletConfiguration)}
	m.config.Transport = m.gate
	m.images = server.ImageServiceEndpoint
	m.runtime = server.ContainerRuntimeEndpoint
	if m.images == "" {
		m.images = m.runtime
	}
	if config.RuntimeService != "" {
		m.access = newRuntimeGate(config.RuntimeService, m.runtime)
		server.ContainerRuntimeEndpoint = config.RuntimeService
	}
	if config.ImageService != "" {
		server.ImageServiceEndpoint = config.ImageService
	}
	if server.ResolverConfig != "" {
		m.resolver = &resolver{configured: server.ResolverConfig, dir: m.RootDir()}
		server.ResolverConfig = m.resolver.path()
	}
	return m, nil
}

// Codec is gRPC's codec for the process that this module runs in, to be registered before anything
// runs (encoding.RegisterCodecV2): by it the kubelet finds the way to the container runtime's
// streams. Without it, it connects to them itself.
func (m *Module) Codec() encoding.CodecV2 { return m.streams }

// Name implements beehive.Module.
func (m *Module) Name() message.Name { return Name }

var errRanBefore = errors.New("the kubelet runs once in a process; restart edgecore")

// Run implements beehive.Module. It is ready when the kubelet runs, and until then waits for the
// kubelet's needs: Waiting returns the missing one. Goroutines of the kubelet outlive Run by the
// little that the process does: upstream has no way to end them all.
func (m *Module) Run(ctx context.Context, port *beehive.Port) error { return m.run(ctx, port.Ready) }

func (m *Module) run(parent context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	defer context.AfterFunc(m.gate.stopped, cancel)()
	err := m.serve(ctx, ready)
	if m.gate.stopped.Err() != nil {
		<-parent.Done() // a stop is no failure
		return nil
	}
	return err
}

// Stop ends the kubelet for the rest of this process; containers keep running. From then on it is
// cut off from its API and from the container runtime, before Stop returns: upstream's loops don't
// all end with their context, and one that acts on a failed probe would start the container again.
// This kubelet does not see how a container ends after Stop. To the next one the pod is as after a
// power cut.
func (m *Module) Stop() {
	m.gate.stop()
	if m.access != nil {
		m.access.stop(context.Background())
	}
}

// Stopped reports whether Stop was called; nil has no kubelet, and was not.
func (m *Module) Stopped() bool { return m != nil && m.gate.stopped.Err() != nil }

// Periods are the shutdownGracePeriods of the KubeletConfiguration, in the order of their
// priorities; empty if a shutdown does not wait for pods.
func (m *Module) Periods() []Period { return m.periods }

func (m *Module) serve(ctx context.Context, ready func()) error {
	m.mu.Lock()
	ran := m.ran
	m.ran = true
	m.mu.Unlock()
	if ran {
		return errRanBefore
	}
	s := m.server
	gates := utilfeature.DefaultMutableFeatureGate
	if err := gates.SetFromMap(s.FeatureGates); err != nil { // before await: dropState judges by them
		return fmt.Errorf("setting the kubelet's feature gates: %w", err)
	}
	m.advise(ctx, net.DefaultResolver.LookupHost)
	var keeping sync.WaitGroup
	defer keeping.Wait()
	ctx, end := context.WithCancel(ctx)
	defer end()
	kept := newReserve(m.RootDir())
	kept.adjust(ctx) // before the kubelet starts
	keeping.Go(func() { kept.run(ctx) })
	if err := m.await(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // stopped while waiting
		}
		return err
	}

	if err := logsapi.ValidateAndApply(&s.Logging, utilfeature.DefaultFeatureGate); err != nil {
		return fmt.Errorf("setting the kubelet's logging: %w", err)
	}
	gates.AddMetrics()
	for reason, text := range leaveOut(s) {
		klog.FromContext(ctx).Info("Left out files of the kubelet's configuration", "reason", reason, "message", text)
		m.notes.add(ctx, reason, text)
	}
	deps, err := app.UnsecuredDependencies(ctx, s, utilfeature.DefaultFeatureGate)
	if err != nil {
		return fmt.Errorf("preparing the kubelet: %w", err)
	}
	clients, err := m.clients()
	if err != nil {
		return err
	}
	deps.KubeClient, deps.EventClient, deps.HeartbeatClient = clients.kube, clients.events, clients.heartbeat
	auth, reload, err := app.BuildAuth(types.NodeName(m.config.NodeName), clients.kube, s.KubeletConfiguration)
	if err != nil {
		return fmt.Errorf("preparing the kubelet's judgement of its clients: %w", err)
	}
	reload(ctx.Done()) // returns at once
	deps.Auth = &localAuth{AuthInterface: auth, local: m.local}
	klog.FromContext(ctx).Info("Starting the kubelet", "node", m.config.NodeName, "runtime", m.runtime)
	if m.access != nil {
		if err := m.access.open(); err != nil {
			return err
		}
		defer m.access.stop(context.WithoutCancel(ctx))
	}
	if m.resolver != nil {
		if _, err := m.resolver.point(); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to link the kubelet's resolv.conf, retrying: no pod starts")
		}
		var link sync.WaitGroup
		defer link.Wait()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		link.Go(func() { m.resolver.run(ctx) })
	}
	var watching sync.WaitGroup
	defer watching.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watching.Go(func() {
		if err := m.streams.Run(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to lead the kubelet's streams, it connects to the container runtime itself")
		}
	})
	hangs := pluginwatch.New(func(ctx context.Context, text string) {
		klog.FromContext(ctx).Info("Ended a call of a device plugin that hung", "message", text)
		m.notes.add(ctx, "DevicePluginHangs", text)
	})
	watching.Go(func() { hangs.Run(ctx) })
	ready()
	if err := app.Run(ctx, s, deps, utilfeature.DefaultFeatureGate); err != nil && ctx.Err() == nil {
		return fmt.Errorf("running the kubelet: %w", err)
	}
	return nil
}

// Waiting returns the need that the kubelet's start waits for; nil when it runs, or Run was not
// called.
func (m *Module) Waiting() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.waiting
}

func (m *Module) wait(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting = err
}

type clients struct {
	kube      kubernetes.Interface
	events    typedcorev1.EventsGetter
	heartbeat kubernetes.Interface
}

// clients makes the kubelet's three clients, as its own start-up does with a kubeconfig. Its
// requests go to the store in this process, so they are not rate-limited; only events keep the
// limit of the configuration.
func (m *Module) clients() (clients, error) {
	s := m.server
	config := &rest.Config{
		Host:      m.config.Host,
		Transport: m.config.Transport,
		UserAgent: "edged",
		QPS:       -1,
		ContentConfig: rest.ContentConfig{
			ContentType:        runtime.ContentTypeProtobuf,
			AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON,
		},
	}
	var c clients
	var err error
	if c.kube, err = kubernetes.NewForConfig(config); err != nil {
		return c, fmt.Errorf("making the kubelet's client: %w", err)
	}
	c.kube = &keeping{newSharing(c.kube, m.config.Share), func(ctx context.Context) []string { return runningDrivers(ctx, m.RootDir()) }}
	if m.config.Linked != nil {
		c.kube = &waiting{c.kube, m.config.Linked}
	}
	events := rest.CopyConfig(config)
	events.QPS, events.Burst = float32(s.EventRecordQPS), int(s.EventBurst)
	if s.EventRecordQPS == 0 {
		events.QPS = -1 // for the kubelet 0 is no limit, for a client it is the default limit
	}
	if c.events, err = typedcorev1.NewForConfig(events); err != nil {
		return c, fmt.Errorf("making the kubelet's event client: %w", err)
	}
	heartbeat := rest.CopyConfig(config)
	heartbeat.Timeout = min(s.NodeStatusUpdateFrequency.Duration, time.Duration(s.NodeLeaseDurationSeconds)*time.Second)
	if c.heartbeat, err = kubernetes.NewForConfig(heartbeat); err != nil {
		return c, fmt.Errorf("making the kubelet's heartbeat client: %w", err)
	}
	return c, nil
}

// Notes are what this module had to do since its start for the kubelet to run, with the time: files
// that it deleted, calls that it ended.
func (m *Module) Notes() []string {
	if m == nil {
		return nil
	}
	return m.notes.list()
}

// RootDir is where the kubelet has its files.
func (m *Module) RootDir() string { return filepath.Clean(m.server.RootDirectory) }

// Runtime is the endpoint of the container runtime; "" where there is no kubelet.
func (m *Module) Runtime() string {
	if m == nil {
		return ""
	}
	return m.runtime
}

// Images is the endpoint of the container runtime's images; "" where there is no kubelet.
func (m *Module) Images() string {
	if m == nil {
		return ""
	}
	return m.images
}

// Server returns the address of the kubelet's own server on this device; "" without a server.
func (m *Module) Server() string {
	if !m.server.EnableServer {
		return ""
	}
	host := m.server.Address
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, strconv.Itoa(int(m.server.Port)))
}

// DialLocal connects to this kubelet's server as edgecore itself, which may ask it for logs, exec,
// attach and port-forward of pods. The protocol of the connection is HTTP/1.1.
func (m *Module) DialLocal(ctx context.Context) (net.Conn, error) {
	return m.local.dial(ctx, m.server, m.Server())
}
