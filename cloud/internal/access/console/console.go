// Package console leads a device to the consoles of the KubeVirt virtual machines that run on it:
// VNC and serial, as the node, through kube-apiserver.
//
// It owns the targets of streams that devices open: a machine that runs on that very node,
// no other. Kubernetes judges whether the node may, by a SubjectAccessReview first and again
// when the console is opened in the node's name; without rights (`cloudcore install --console`) a
// device gets no reason, not even whether there is such a machine. It refuses a node that asks too
// often, and ends streams that last too long. A Console may be used by many goroutines at once.
package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/core/quota"
)

// A device's request: one of these, the machine's namespace and its name, with slashes between
// them. The same words are in edge/internal/optional/console.
const (
	forVNC    = "vnc"    // the machine's screen, by RFB (RFC 6143)
	forSerial = "serial" // its first serial port
	forEnd    = "end"    // only the machine's end: the stream carries no data
)

// Config configures a Console. Every zero duration and bound means its default.
type Config struct {
	// Machines reads VirtualMachineInstances as cloudcore itself.
	Machines dynamic.Interface
	// Review asks whether a node may: kube.Access.
	Review func(ctx context.Context, node types.NodeName, at kube.Attributes) (kube.Decision, error)
	// Dial opens a websocket at kube-apiserver as a node.
	Dial func(ctx context.Context, node types.NodeName, path string) (net.Conn, error)

	// Most bounds the streams of all nodes together: 256. At the bound one more is refused.
	Most int
	// Longest is the longest life of a stream, whatever the device requests: 8 h.
	Longest time.Duration
}

// perNode is how often a node may ask: each time costs kube-apiserver a review and a read.
func perNode() quota.Rate { return quota.Rate{PerSecond: 1, Burst: 20} }

// Console serves devices.
type Console struct {
	config Config
	rates  *quota.Rates
	places chan struct{} // a token for each stream

	open    prometheus.GaugeFunc
	refused *prometheus.CounterVec
}

// New returns a Console.
func New(config Config) *Console {
	config.Most = cmp.Or(config.Most, 256)
	config.Longest = cmp.Or(config.Longest, 8*time.Hour)
	c := &Console{config: config, rates: quota.NewRates(perNode()), places: make(chan struct{}, config.Most)}
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: "skerry", Subsystem: "console", Name: name, Help: help}
	}
	c.open = prometheus.NewGaugeFunc(prometheus.GaugeOpts(opts("streams", "Open streams of devices to consoles of their virtual machines.")),
		func() float64 { return float64(len(c.places)) })
	c.refused = prometheus.NewCounterVec(prometheus.CounterOpts(opts("refused_total", "Streams that were refused, by reason.")), []string{"reason"})
	return c
}

// Describe implements prometheus.Collector.
func (c *Console) Describe(ch chan<- *prometheus.Desc) { c.open.Describe(ch); c.refused.Describe(ch) }

// Collect implements prometheus.Collector.
func (c *Console) Collect(ch chan<- prometheus.Metric) { c.open.Collect(ch); c.refused.Collect(ch) }

// request is a device's request.
type request struct {
	kind string
	vmi  types.NamespacedName
}

// subresource is its name below a VirtualMachineInstance.
func (r request) subresource() string {
	if r.kind == forSerial {
		return "console"
	}
	return "vnc"
}

// path is where kube-apiserver has it. Names were checked: they need no escaping.
func (r request) path() string {
	return "/apis/subresources.kubevirt.io/v1/namespaces/" + r.vmi.Namespace + "/virtualmachineinstances/" + r.vmi.Name + "/" + r.subresource()
}

func parse(target string) (request, error) {
	parts := strings.Split(target, "/")
	if len(parts) != 3 || parts[0] != forVNC && parts[0] != forSerial && parts[0] != forEnd {
		return request{}, fmt.Errorf("a device's streams lead to consoles of its virtual machines, not to %.64q", target)
	}
	for _, name := range parts[1:] {
		if reasons := content.IsDNS1123Subdomain(name); len(reasons) > 0 {
			return request{}, fmt.Errorf("%.64q can't be the name of a virtual machine or namespace: %s", name, reasons[0])
		}
	}
	return request{parts[0], types.NamespacedName{Namespace: parts[1], Name: parts[2]}}, nil
}

// Accept connects a node to its target. People on the device read its error.
func (c *Console) Accept(ctx context.Context, node types.NodeName, target string) (net.Conn, error) {
	logger := klog.FromContext(ctx).WithValues("node", node, "target", target)
	conn, err := c.accept(klog.NewContext(ctx, logger), node, target)
	if err == nil {
		logger.Info("Opened a console for a device")
		return conn, nil
	}
	reason := "failed"
	if r, ok := errors.AsType[*refusal](err); ok {
		reason = r.reason
	} else {
		logger.Error(err, "Failed to open a console")
		err = errors.New("cloudcore failed to connect to kube-apiserver; see cloudcore's log")
	}
	c.refused.WithLabelValues(reason).Inc()
	return nil, err
}

func (c *Console) accept(ctx context.Context, node types.NodeName, target string) (_ net.Conn, err error) {
	r, err := parse(target)
	if err != nil {
		return nil, refuse("target", "%s", err)
	}
	if ok, after := c.rates.Take(node); !ok {
		return nil, refuse("quota", "this device asks for consoles too often; again in %d s", after)
	}
	select {
	case c.places <- struct{}{}:
	default:
		return nil, refuse("busy", "cloudcore has %d consoles open already", c.config.Most)
	}
	back := func() { <-c.places }
	defer func() {
		if err != nil {
			back()
		}
	}()
	if err := c.judge(ctx, node, r); err != nil {
		return nil, err
	}
	m := machine{c.config.Machines.Resource(Machines()).Namespace(r.vmi.Namespace), node, r.vmi}
	version, err := m.here(ctx)
	if err != nil {
		return nil, err
	}
	if r.kind == forEnd {
		return newConn(silent(), m, version, c.config.Longest, back), nil
	}
	far, err := c.config.Dial(ctx, node, r.path())
	if err != nil {
		return nil, refuse("kubevirt", "the console of %s does not open: %v", r.vmi, err)
	}
	return newConn(far, m, version, c.config.Longest, back), nil
}

// judge asks Kubernetes. To wait for the end needs the rights of VNC.
func (c *Console) judge(ctx context.Context, node types.NodeName, r request) error {
	resource := schema.GroupVersionResource{Group: "subresources.kubevirt.io", Version: "v1", Resource: "virtualmachineinstances"}
	d, err := c.config.Review(ctx, node, kube.Attributes{Verb: "get", Resource: resource, Subresource: r.subresource(), Namespace: r.vmi.Namespace, Name: r.vmi.Name})
	if err != nil {
		return err
	}
	if !d.Allowed {
		return refuse("forbidden", "this node may not open the console of %s: devices of this cluster have no right to get %s/%s of %s there", r.vmi, resource.Resource, r.subresource(), resource.Group)
	}
	return nil
}
