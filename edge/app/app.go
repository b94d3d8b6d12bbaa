// Package app assembles edgecore: a constructor for each wing, and the order of their modules.
//
// It owns only the order in which modules start, and the parts' configuration from edgecore.yaml.
// New opens the store, reads the identity and makes the wings, each from those that it needs; three
// values (kubelet, uplink, reporters) stand for parts that are made later. Run starts everything
// and ends when ctx does.
//
// It is above 2,500 lines because every part of the device is assembled here, with its settings of
// edgecore.yaml.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/encoding"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/common/logging"
	"github.com/skerry-io/skerry/common/protocol"
	"github.com/skerry-io/skerry/common/watchdog"
	"github.com/skerry-io/skerry/edge/internal/core/edgeapi"
	"github.com/skerry-io/skerry/edge/internal/core/launch"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/site/names"
)

// App is edgecore: its wings, and the process around them.
type App struct {
	*base
	reporters *reporters
	kubelet   *kubelet
	uplink    *uplink
	rescue    *rescue

	core     *coreWing
	site     *siteWing
	agents   *agentsWing
	optional *optionalWing
	link     *linkWing

	file       string                                                           // of the configuration
	log        *logging.Log                                                     // set by LogsTo
	statusFor  func(accept string) (body []byte, contentType string, err error) // set by ShowStatus
	packBundle func(ctx context.Context, w io.Writer, most int) error           // set by ShowStatus
	bundling   sync.Mutex                                                       // held while a bundle is packed
	protocols  protocol.Window                                                  // zero: this release's
	keys       []string                                                         // directories of keys that sign versions
	switching  switching
	dog        *watchdog.Watchdog
	runner     *beehive.Runner
	metrics    *prometheus.Registry
}

// Option changes an App for programs of tests.
type Option func(*App)

// Speaking has edgecore speak these versions of the link's protocol, as another release does.
func Speaking(w protocol.Window) Option { return func(a *App) { a.protocols = w } }

// TrustingKeys has edgecore trust the keys in that directory, and no others.
func TrustingKeys(dir string) Option { return func(a *App) { a.keys = []string{dir} } }

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

// KubeletTransport answers requests to host as those of this device's kubelet, for programs that
// simulate one. edgecore itself does not use it.
func (a *App) KubeletTransport() (transport http.RoundTripper, host string) {
	return a.core.api.RoundTripper(edgeapi.Identity{Kubelet: true}), edgeapi.Host
}

// Report reports body to the cloud as this device's entry in the status of an object, for programs
// that replace an agent. edgecore itself does not use it.
func (a *App) Report(ctx context.Context, resource schema.GroupVersionResource, name string, uid types.UID, body []byte) error {
	return a.core.meta.Report(ctx, object.Ref{Resource: resource, Name: name}, uid, body)
}

// StandIn makes a program that replaces agents of this device repeat their reports when edgecore's
// own do, until settled returns true. It is called before Run. edgecore itself does not use it.
func (a *App) StandIn(repeat func(), settled func() bool) {
	a.reporters.repeatOthers, a.reporters.othersSettled = repeat, settled
}

// Codec is gRPC's codec for this process (edged.Module); nil without a kubelet. It is registered
// before Run.
func (a *App) Codec() encoding.CodecV2 {
	if a.kubelet.module == nil {
		return nil
	}
	return a.kubelet.module.Codec()
}

// ReleasePages gives back the pages of the device's files that are mapped.
func (a *App) ReleasePages() error { return a.store.ReleasePages() }

// ConfiguredBy sets the file of the configuration: changes of it by the cloud are validated with
// that. Called before Run.
func (a *App) ConfiguredBy(file string) { a.file = file }

// Switching reports whether Run has ended for another edgecore to be executed: Again does that.
func (a *App) Switching() bool {
	a.switching.mu.Lock()
	defer a.switching.mu.Unlock()
	return a.switching.on
}

// Again executes skerry-launch in the place of this process, which has started it. It returns
// only with an error.
func (a *App) Again(ctx context.Context) error {
	started, ok := launch.FromEnvironment()
	if !ok {
		return errors.New("this edgecore was not started by skerry-launch")
	}
	names.PassOn()
	if a.dog != nil {
		if err := a.dog.PassOn(); err != nil {
			return fmt.Errorf("passing on systemd's watchdog: %w", err)
		}
	}
	klog.FromContext(ctx).Info("Executing skerry-launch", "path", started.Launcher[0])
	return started.Again()
}

// noteStopped records for skerry-launch that this process was stopped deliberately: in a probation
// the next start is not counted as a crash.
func (a *App) noteStopped(ctx context.Context) {
	d, ok := launched()
	if !ok {
		return
	}
	state, err := d.Load()
	if err != nil || state.Former == nil {
		return
	}
	if _, err := d.Save(state.Stop()); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to record a clean exit; the next start counts as one after a crash")
	}
}
