package edged

import (
	"context"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/kubernetes"
	typedresourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/skerry-io/skerry/edge/internal/pods/cri"
)

// keeping is a client that deletes no ResourceSlices of DRA drivers that run on this device.
//
// A kubelet that starts deletes all of its node's, since no driver has registered yet, and those of
// a driver that was missing for a while; it retries until it succeeds
// (DRAPluginManager.wipeResourceSlices). Without a link that is when the link returns: the drivers
// have long registered again, and the scheduler would lose the devices of running pods. With one it
// is at every start of edgecore.
type keeping struct {
	kubernetes.Interface
	running func(ctx context.Context) (drivers []string)
}

type keepingResource struct {
	typedresourcev1.ResourceV1Interface
	running func(ctx context.Context) []string
}

type keepingSlices struct {
	typedresourcev1.ResourceSliceInterface
	running func(ctx context.Context) []string
}

// ResourceV1 implements kubernetes.Interface.
func (c *keeping) ResourceV1() typedresourcev1.ResourceV1Interface {
	return keepingResource{c.Interface.ResourceV1(), c.running}
}

// ResourceSlices implements typedresourcev1.ResourceV1Interface.
func (c keepingResource) ResourceSlices() typedresourcev1.ResourceSliceInterface {
	return keepingSlices{c.ResourceV1Interface.ResourceSlices(), c.running}
}

// DeleteCollection implements typedresourcev1.ResourceSliceInterface.
func (c keepingSlices) DeleteCollection(ctx context.Context, options metav1.DeleteOptions, list metav1.ListOptions) error {
	running := c.running(ctx)
	selector, all := without(list.FieldSelector, running)
	if !all {
		return nil
	}
	if len(running) > 0 {
		klog.FromContext(ctx).Info("Keeping the ResourceSlices of running DRA drivers", "drivers", running, "deleted", selector)
	}
	list.FieldSelector = selector
	return c.ResourceSliceInterface.DeleteCollection(ctx, options, list)
}

// without leaves drivers out of a selector of ResourceSlices; some is false where it selects only
// theirs.
func without(selector string, drivers []string) (rest string, some bool) {
	parsed, err := fields.ParseSelector(selector)
	if err != nil {
		return selector, true // kube-apiserver refuses it
	}
	all := []fields.Selector{parsed}
	for _, r := range parsed.Requirements() {
		if r.Field == resourcev1.ResourceSliceSelectorDriver && r.Operator != selection.NotEquals && slices.Contains(drivers, r.Value) {
			return "", false
		}
	}
	for _, d := range drivers {
		all = append(all, fields.OneTermNotEqualSelector(resourcev1.ResourceSliceSelectorDriver, d))
	}
	return fields.AndSelectors(all...).String(), true
}

const (
	// mostSockets bounds the sockets that are asked: a kubelet has a dozen plugins.
	mostSockets = 256
	// socketsAtOnce bounds those that are asked at the same time: several may hang.
	socketsAtOnce = 16
	// registrationTimeout is for one of them: a driver that hangs does not keep its slices.
	registrationTimeout = 2 * time.Second
)

// runningDrivers asks at all sockets of the kubelet's plugins for DRA drivers. The kubelet itself
// does that before it uses one.
func runningDrivers(ctx context.Context, rootDir string) (drivers []string) {
	var sockets []string
	_ = filepath.WalkDir(filepath.Join(rootDir, "plugins_registry"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type()&fs.ModeSocket != 0 && !strings.HasPrefix(d.Name(), ".") && len(sockets) < mostSockets { // as pluginwatcher
			sockets = append(sockets, path)
		}
		return nil // without a folder there are no plugins
	})
	infos := make([]*registerapi.PluginInfo, len(sockets))
	var g errgroup.Group
	g.SetLimit(socketsAtOnce)
	for i, path := range sockets {
		g.Go(func() error {
			infos[i], _ = askPlugin(ctx, path) // one that does not answer does not run
			return nil
		})
	}
	_ = g.Wait() // no call returns an error
	for _, info := range infos {
		if info.GetType() == registerapi.DRAPlugin && !slices.Contains(drivers, info.GetName()) {
			drivers = append(drivers, info.GetName())
		}
	}
	slices.Sort(drivers)
	return drivers
}

func askPlugin(ctx context.Context, path string) (*registerapi.PluginInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, registrationTimeout)
	defer cancel()
	conn, err := cri.Dial(path)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return registerapi.NewRegistrationClient(conn).GetInfo(ctx, &registerapi.InfoRequest{})
}
