// Package pluginwatch ends calls of device plugins that hang.
//
// The kubelet asks a plugin for devices while it admits a pod, without a time limit, in its only
// loop (devicemanager: Allocate and GetPreferredAllocation; syncLoop): while that hangs no pod
// starts or ends, and no container is started again. All other calls have limits of the kubelet's
// own, and hold only their pod up: PreStartContainer 30 s, DRA 45 s, CSI 2 min. The kubelet is in
// this process, so its calls are seen in its stacks, and its connection to the plugin can be shut
// down: the call fails, the pod is rejected, and the plugin is out until it registers again.
//
// It owns the decision that a call hangs. It refuses to touch plugins that answer while another one
// does not, and sockets that are not in the folder of device plugins. A Watch is run by one
// goroutine.
package pluginwatch

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/skerry-io/skerry/common/rerun"
	"github.com/skerry-io/skerry/edge/internal/pods/cri"
	"github.com/skerry-io/skerry/edge/internal/pods/peer"
)

const (
	// hangPoll is the interval of looking for a call that hangs, and hangLooks in how many looks in
	// a row it is under way: after a minute.
	hangPoll  = 20 * time.Second
	hangLooks = 4
	// optionsTimeout is for a plugin to answer a question about itself.
	optionsTimeout = 2 * time.Second
	// maxStacks bounds the stacks that are read, in bytes: a kubelet has some hundred goroutines.
	maxStacks = 4 << 20
)

// Watch looks for calls that hang.
type Watch struct {
	dir    string        // of the plugins' sockets
	stacks func() []byte // of all goroutines
	report func(ctx context.Context, text string)
	looks  int // in how many looks in a row a call was under way
}

// New returns a Watch of the plugins that have registered at the kubelet's socket; report is called
// when a call was ended.
func New(report func(ctx context.Context, text string)) *Watch {
	return &Watch{dir: filepath.Dir(deviceplugin.KubeletSocket), stacks: allStacks, report: report}
}

// Run looks until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	for rerun.Pause(ctx, hangPoll) == nil {
		w.look(ctx)
	}
}

// look reads stacks only if the kubelet is connected to a plugin: it stops the process for some
// milliseconds.
func (w *Watch) look(ctx context.Context) {
	conns := pluginConns(w.dir)
	defer func() {
		for _, of := range conns {
			for _, c := range of {
				c.Close()
			}
		}
	}()
	if len(conns) == 0 || !allocates(w.stacks()) {
		w.looks = 0
		return
	}
	if w.looks++; w.looks < hangLooks {
		return
	}
	w.looks = 0
	var hung []string
	for name := range conns {
		if err := answers(ctx, filepath.Join(w.dir, name)); err != nil {
			hung = append(hung, name)
		}
	}
	if len(hung) == 0 { // only Allocate hangs: it is not known whose
		for name := range conns {
			hung = append(hung, name)
		}
	}
	slices.Sort(hung)
	for _, name := range hung {
		var failed error
		for _, c := range conns[name] {
			if err := c.Shutdown(); err != nil {
				failed = err
			}
		}
		if failed != nil {
			klog.FromContext(ctx).Error(failed, "Failed to shut down the kubelet's connection to a device plugin that hangs, retrying", "socket", name)
			continue
		}
		// A kubelet that starts removes it, on which plugins register again.
		if err := os.Remove(filepath.Join(w.dir, name)); err != nil && !os.IsNotExist(err) {
			klog.FromContext(ctx).Error(err, "Failed to remove the socket of a device plugin that hangs: it may not register again", "socket", name)
		}
	}
	w.report(ctx, fmt.Sprintf("a device plugin did not answer Allocate for a minute, in which no pod could start or end: closed the kubelet's connections to %s; "+
		"restart the plugin if its devices do not come back", strings.Join(hung, ", ")))
}

// allocates reports whether the kubelet waits for a plugin's devices.
func allocates(stacks []byte) bool {
	for _, call := range []string{"devicemanager.(*endpointImpl).allocate(", "devicemanager.(*endpointImpl).getPreferredAllocation("} {
		if bytes.Contains(stacks, []byte(call)) {
			return true
		}
	}
	return false
}

func allStacks() []byte {
	for size := 256 << 10; ; size *= 2 {
		buf := make([]byte, size)
		if n := runtime.Stack(buf, true); n < size || size >= maxStacks {
			return buf[:n]
		}
	}
}

// answers asks a plugin for its options, which it has at hand.
func answers(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, optionsTimeout)
	defer cancel()
	conn, err := cri.Dial(socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = deviceplugin.NewDevicePluginClient(conn).GetDevicePluginOptions(ctx, &deviceplugin.Empty{})
	return err
}

// pluginConns are this process's connections to the sockets of a folder, by the name of the socket,
// to be closed by the caller. A plugin may have bound it at another path of its mount namespace.
func pluginConns(dir string) map[string][]peer.Conn {
	all := map[string][]peer.Conn{}
	for _, c := range peer.Conns(func(address string) bool { return socketIn(dir, filepath.Base(address)) }) {
		name := filepath.Base(c.Address)
		all[name] = append(all[name], c)
	}
	return all
}

// socketIn reports whether a folder has a plugin's socket of that name.
func socketIn(dir, name string) bool {
	info, err := os.Stat(filepath.Join(dir, name))
	return err == nil && info.Mode()&os.ModeSocket != 0 && name != filepath.Base(deviceplugin.KubeletSocket)
}
