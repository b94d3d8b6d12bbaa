package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/cloud/cmd/kubectl-skerry/webui"
	"github.com/skerry-io/skerry/cloud/internal/core/fleet"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/cli"
)

const (
	// uiPeriod is how often the page's state is computed again: a link is down by the clock alone.
	uiPeriod = time.Second
	// maxOfDevice bounds the pods, and the Events, that one device's timeline is made of.
	maxOfDevice = 500
)

// uiOptions are the flags of ui.
type uiOptions struct {
	streams genericiooptions.IOStreams
	port    int
	labels  string
	limits  fleet.Limits
}

func uiCommand(f getter, streams genericiooptions.IOStreams) *cobra.Command {
	o := &uiOptions{streams: streams, limits: fleet.DefaultLimits()}
	c := &cobra.Command{
		Use: "ui", Short: "Serve a read-only page of the fleet on loopback, as you: sites, devices, timelines, virtual IPs and routes",
		Long: `Serve a page on loopback, until interrupted, and print its address. It shows what 'kubectl skerry status' does, each device's timeline (link, pods,
operations, the flight recorder of the device itself), virtual IPs and routes, and follows changes.

The page asks kube-apiserver as the user of your kubeconfig, with that user's rights: the ClusterRole skerry:viewer is enough. It changes nothing. The address
contains a token of this run; who has it sees what you may see.`,
		Example: `  kubectl skerry ui
  kubectl skerry ui --port 8042 -l skerry.io/node-pool=ferries
  ssh -L 8042:127.0.0.1:8042 admin@bastion kubectl skerry ui --port 8042`,
		Args: cli.Args(cobra.NoArgs), SilenceUsage: true,
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c.Context(), f) },
	}
	c.Flags().IntVar(&o.port, "port", 0, "Port on 127.0.0.1; 0: any that is free")
	c.Flags().StringVarP(&o.labels, "selector", "l", "", "Selector (label query) of Nodes")
	return c
}

func (o *uiOptions) run(ctx context.Context, f getter) error {
	if err := selector(o.labels); err != nil {
		return usage(err)
	}
	if o.port < 0 || o.port > 65535 {
		return usage(fmt.Errorf("--port: %d is no port", o.port))
	}
	c, err := connect(readOnly{f})
	if err != nil {
		return err
	}
	c.labels = o.labels
	if err := c.reachable(ctx); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(o.port)))
	if err != nil {
		return fmt.Errorf("--port: %w", err)
	}
	token := rand.Text()
	server := webui.New(webui.Config{Token: token, Device: c.timeline, Recorder: c.recorded})
	fmt.Fprintf(o.streams.Out, "http://%s/#token=%s\n", listener.Addr(), token)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(ctx, listener) }()
	view := &uiView{server: server, limits: o.limits, now: c.now}
	err = c.followSources(ctx, append(c.sources(), view.sources(c)...), uiPeriod, view.observe, view.show)
	cancel()
	return errors.Join(err, <-failed)
}

// reachable asks for one Node, so that a wrong kubeconfig is told before there is a page.
func (c *cluster) reachable(ctx context.Context) error {
	if _, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: c.labels, Limit: 1}); err != nil {
		return rights(fmt.Errorf("listing nodes: %w", err))
	}
	return nil
}

// readOnly refuses, before it is sent, each request that could change something.
type readOnly struct{ getter }

// ToRESTConfig implements getter.
func (r readOnly) ToRESTConfig() (*rest.Config, error) {
	config, err := r.getter.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.Wrap(func(to http.RoundTripper) http.RoundTripper { return onlyGet{to} })
	return config, nil
}

type onlyGet struct{ to http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (o onlyGet) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet {
		return nil, fmt.Errorf("%s %s: the page only reads", r.Method, r.URL.Path)
	}
	return o.to.RoundTrip(r)
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (o onlyGet) WrappedRoundTripper() http.RoundTripper { return o.to }

// uiView computes the page's state. sources add to vips and routes, show takes them; both are
// called by the goroutine that follows the cluster.
type uiView struct {
	server *webui.Server
	limits fleet.Limits
	now    func() time.Time
	vips   []webui.VIP
	routes []webui.Route

	mu     sync.Mutex
	failed map[string]string // what can't be read now, and why
}

// sources are the page's lists in addition to the four of the status; without the rights for them
// the rest is shown.
func (v *uiView) sources(c *cluster) []source {
	of := func(plural string, add func(runtime.Object)) source {
		all := c.objects.Resource(v1alpha1.Resource(plural))
		return source{
			what: plural, optional: true,
			list:    func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return all.List(ctx, o) },
			watch:   all.Watch,
			example: &unstructured.Unstructured{},
			add:     func(_ *fleet.Facts, o runtime.Object) { add(o) },
		}
	}
	return []source{
		of(v1alpha1.VirtualIPs, func(o runtime.Object) {
			var one v1alpha1.VirtualIP
			if decode(o, &one) {
				v.vips = append(v.vips, webui.VIPOf(&one))
			}
		}),
		of(v1alpha1.StaticRoutes, func(o runtime.Object) {
			var one v1alpha1.StaticRoute
			if decode(o, &one) {
				v.routes = append(v.routes, webui.RouteOf(&one))
			}
		}),
	}
}

func decode(o runtime.Object, into any) bool {
	u, ok := o.(*unstructured.Unstructured)
	return ok && runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, into) == nil
}

// observe takes the result of a request for a collection.
func (v *uiView) observe(what string, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsResourceExpired(err) {
		delete(v.failed, what)
		return
	}
	if v.failed == nil {
		v.failed = map[string]string{}
	}
	v.failed[what] = fleet.Printable(rights(fmt.Errorf("reading %s: %w", what, err)).Error(), 1000)
}

// show gives the page a new state.
func (v *uiView) show(facts fleet.Facts) error {
	now := v.now()
	nodes := fleet.Of(facts, v.limits, now)
	v.mu.Lock()
	notes := slices.Collect(maps.Values(v.failed))
	v.mu.Unlock()
	slices.Sort(notes)
	slices.SortFunc(v.vips, func(a, b webui.VIP) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(v.routes, func(a, b webui.Route) int { return cmp.Compare(a.Name, b.Name) })
	state := webui.Fleet{Summary: fleet.Summary(nodes), Nodes: fleet.Worst(nodes), VIPs: v.vips, Routes: v.routes, Notes: notes}
	v.vips, v.routes = nil, nil
	return v.server.Set(state, now)
}

// timeline is what the cluster has of one device.
func (c *cluster) timeline(ctx context.Context, name string) (t webui.Timeline, err error) {
	one := *c
	one.name = name
	facts, err := one.read(ctx)
	if err != nil {
		return t, err
	}
	nodes := fleet.Of(facts, fleet.DefaultLimits(), c.now())
	i := slices.IndexFunc(nodes, func(n fleet.Node) bool { return n.Name == name })
	if i < 0 {
		return t, fmt.Errorf("there is no device %s", name)
	}
	history := webui.History{Node: nodes[i], Operations: facts.Operations}
	pods, err := c.client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", name).String(), Limit: maxOfDevice})
	if err != nil {
		return t, rights(fmt.Errorf("listing pods: %w", err))
	}
	history.Pods = pods.Items
	// Events of objects without a namespace are in this one.
	events, err := c.client.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{
		FieldSelector: fields.Set{"involvedObject.kind": "Node", "involvedObject.name": name}.AsSelector().String(), Limit: maxOfDevice,
	})
	if err != nil {
		t.Notes = append(t.Notes, fleet.Printable(rights(fmt.Errorf("listing events: %w", err)).Error(), 1000))
		events = &corev1.EventList{}
	}
	history.Events = events.Items
	t.Entries = history.Timeline()
	return t, nil
}

// recorded is what a device's flight recorder has, asked over its link.
func (c *cluster) recorded(ctx context.Context, name string) (t webui.Timeline, err error) {
	raw, err := c.recorder(ctx, name)
	if err != nil {
		return t, err
	}
	t.Entries, err = webui.Recorded(raw)
	return t, err
}
