package drain

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/linkstate"
	"github.com/skerry-io/skerry/edge/internal/object"
)

// Name is the module's address on the bus.
const Name message.Name = "drain"

// Reporter brings an operation's status to the cloud, now or later: *meta.Manager.
type Reporter interface {
	Report(ctx context.Context, ref object.Ref, uid types.UID, body []byte) error
}

// ModuleConfig is what a Module needs beside its agent.
type ModuleConfig struct {
	// Edge leads to the edge API: what the device holds, also without a link. Cloud leads to kube-apiserver (Through).
	Edge, Cloud *rest.Config
	Reporter    Reporter
	// Linked reports whether there is a link when the module starts; later the bus says so.
	Linked func() bool
	// Events opens the recorder of events for one run; nil for none.
	Events func(ctx context.Context) (events record.EventRecorder, done func(), err error)
}

// Module is the agent on the bus: it brings the cloud's NodeOperations to it, and its words to the cloud.
type Module struct {
	agent  *Agent
	config ModuleConfig
	wake   chan struct{} // one slot
}

// NewModule makes the Module of an agent. It starts nothing.
func NewModule(a *Agent, c ModuleConfig) *Module {
	return &Module{agent: a, config: c, wake: make(chan struct{}, 1)}
}

// Name implements beehive.Module.
func (*Module) Name() message.Name { return Name }

// Topics implements beehive.Topics.
func (*Module) Topics() []message.Key {
	return []message.Key{linkstate.Up.Key(), linkstate.Down.Key()}
}

func (m *Module) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Run implements beehive.Module. It is ready once what was kept is read: requests made on the device can be taken then.
func (m *Module) Run(ctx context.Context, port *beehive.Port) error {
	follow, err := m.follow()
	if err != nil {
		return err
	}
	var events record.EventRecorder
	if m.config.Events != nil {
		recorder, done, err := m.config.Events(ctx)
		if err != nil {
			return err
		}
		defer done()
		events = recorder
	}
	started := make(chan struct{})
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return m.agent.run(ctx, events, func() { close(started) }) })
	g.Go(func() error {
		select {
		case <-started:
		case <-ctx.Done():
			return nil
		}
		if err := m.agent.Reachable(ctx, m.config.Linked()); err != nil && ctx.Err() == nil {
			return err
		}
		port.Ready()
		return m.receive(ctx, port)
	})
	g.Go(func() error {
		follow.start(ctx)
		defer follow.stop()
		select {
		case <-started:
		case <-ctx.Done():
			return nil
		}
		return follow.serve(ctx)
	})
	return g.Wait()
}

// receive hears of the link.
func (m *Module) receive(ctx context.Context, port *beehive.Port) error {
	for {
		msg, err := port.Receive(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		switch msg.Key() {
		case linkstate.Up.Key(), linkstate.Down.Key():
			if err := m.agent.Reachable(ctx, msg.Key() == linkstate.Up.Key()); err != nil && ctx.Err() == nil {
				return err
			}
			m.poke()
		}
	}
}

// again is how soon what could not be told or asked is tried again.
const again = 15 * time.Second

// follower is one run of the Module; the goroutine of serve owns it.
type follower struct {
	*Module
	nodes      cache.SharedIndexInformer
	operations cache.SharedIndexInformer
	starters   []func(ctx context.Context)
	stoppers   []func()
	cloud      dynamic.NamespaceableResourceInterface
	sent       map[types.UID]string // what was reported last, in this run
	seen       string               // what the agent was told of the own Node: its version, and whether all operations were known
	problems   map[string]string    // what the log was told already
}

func (m *Module) follow() (*follower, error) {
	client, err := kubernetes.NewForConfig(m.config.Edge)
	if err != nil {
		return nil, fmt.Errorf("making the client for the node: %w", err)
	}
	edge, err := dynamic.NewForConfig(m.config.Edge)
	if err != nil {
		return nil, fmt.Errorf("making the client for operations: %w", err)
	}
	cloud, err := dynamic.NewForConfig(m.config.Cloud)
	if err != nil {
		return nil, fmt.Errorf("making the client for operations in the cloud: %w", err)
	}
	nodes := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", m.agent.config.NodeName).String()
	}))
	operations := dynamicinformer.NewFilteredDynamicSharedInformerFactory(edge, 0, metav1.NamespaceAll, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", m.agent.config.NodeName).String()
	})
	resource := v1alpha1.Resource(v1alpha1.NodeOperations)
	f := &follower{
		Module: m, nodes: nodes.Core().V1().Nodes().Informer(), operations: operations.ForResource(resource).Informer(), cloud: cloud.Resource(resource),
		starters: []func(context.Context){nodes.StartWithContext, func(ctx context.Context) { operations.Start(ctx.Done()) }},
		stoppers: []func(){nodes.Shutdown, operations.Shutdown},
		sent:     map[types.UID]string{}, problems: map[string]string{},
	}
	told := cache.ResourceEventHandlerFuncs{AddFunc: func(any) { m.poke() }, UpdateFunc: func(any, any) { m.poke() }, DeleteFunc: func(any) { m.poke() }}
	for _, i := range []cache.SharedIndexInformer{f.nodes, f.operations} {
		if _, err := i.AddEventHandler(told); err != nil {
			return nil, fmt.Errorf("watching: %w", err)
		}
	}
	return f, nil
}

func (f *follower) start(ctx context.Context) {
	for _, start := range f.starters {
		start(ctx)
	}
	// Nobody is told of an empty set.
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), f.operations.HasSynced) {
			f.poke()
		}
	}()
}

func (f *follower) stop() {
	for _, stop := range f.stoppers {
		stop()
	}
}

// serve brings both sides up to date whenever one of them changes.
func (f *follower) serve(ctx context.Context) error {
	for {
		err := f.sync(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, errNotRunning) {
			return err
		}
		var timer <-chan time.Time
		if err != nil {
			timer = time.After(again)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-f.wake:
		case <-f.agent.changed:
		case <-timer:
		}
	}
}

func (f *follower) sync(ctx context.Context) error {
	var errs []error
	note := func(about string, err error) {
		if err != nil {
			errs = append(errs, err)
		}
		f.note(ctx, about, err)
	}
	taken := f.operations.HasSynced()
	if taken {
		for name, err := range f.take(ctx) {
			note("taking "+name, err)
			taken = taken && err == nil
		}
	}
	if node, there := f.node(); there {
		// Once a version: it may lag behind what the agent did since. Whose cordon it is counts when all operations are known that may want it.
		if seen := fmt.Sprint(node.ResourceVersion, taken); seen != f.seen {
			ready, open := conditionOf(node, f.agent.config.Boot)
			err := f.agent.Node(ctx, ready, open, taken && ours(node))
			if err == nil {
				f.seen = seen
			}
			note("the node", err)
		}
	}
	for _, o := range f.agent.Status().Operations {
		if o.UID == "" {
			note("publishing "+o.Name, f.publish(ctx, o))
		}
	}
	s := f.agent.Status()
	for _, o := range s.Operations {
		if o.UID != "" && !o.Gone && !o.Told {
			note("reporting "+o.Name, f.report(ctx, o, s.Drain.Message))
		}
	}
	return errors.Join(errs...)
}

// note logs a trouble once, until it is another one.
func (f *follower) note(ctx context.Context, about string, err error) {
	if err == nil {
		delete(f.problems, about)
		return
	}
	if text := err.Error(); f.problems[about] != text && ctx.Err() == nil {
		f.problems[about] = text
		klog.FromContext(ctx).Info("A node operation could not be brought up to date; it is tried again", "doing", about, "err", err)
	}
}

func (f *follower) node() (*corev1.Node, bool) {
	o, there, err := f.nodes.GetStore().GetByKey(f.agent.config.NodeName)
	if err != nil || !there {
		return nil, false
	}
	node, ok := o.(*corev1.Node)
	return node, ok
}

// conditionOf tells whether the kubelet of this boot calls the node Ready, and whether the node takes pods. Of an earlier boot it may have said so as well.
func conditionOf(node *corev1.Node, boot string) (ready, open bool) {
	ready = isReady(node)
	if said := node.Status.NodeInfo.BootID; said != "" && boot != "" && said != boot {
		ready = false
	}
	return ready, !node.Spec.Unschedulable
}
