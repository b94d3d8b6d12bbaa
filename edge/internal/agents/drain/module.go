package drain

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
)

// Name is the module's address on the bus.
const Name message.Name = "drain"

// ModuleConfig configures a Module, in addition to its agent.
type ModuleConfig struct {
	// Edge configures a client of the edge API: the cached objects, also without a link. Cloud is
	// for kube-apiserver (Through).
	Edge, Cloud *rest.Config
	Reporter    agent.Reporter
	// Rescue is the way to a cloud that does not support this device's protocol; nil: disabled.
	Rescue Rescue
	// Events opens the recorder of events for one run; nil without one.
	Events func(ctx context.Context) (agent.Recorder, error)
}

// Module is the agent on the bus: it brings the cloud's NodeOperations to it, and its
// words to the cloud.
type Module struct {
	*agent.Module
	agent  *Agent
	cloud  *rest.Config
	rescue Rescue
}

// NewModule makes the Module of an agent. It is ready once the saved state is read: local requests
// can be accepted then.
func NewModule(a *Agent, c ModuleConfig) *Module {
	m := &Module{agent: a, cloud: c.Cloud, rescue: c.Rescue}
	m.Module = agent.New(agent.Config{
		Name: Name, NodeName: a.config.NodeName, API: c.Edge, Reporter: c.Reporter, Events: c.Events, Start: m.start, RetryMax: again,
	})
	return m
}

// again is how soon, at the latest, a report or question that failed is retried.
const again = 15 * time.Second

// follower is one run of the Module; the goroutine of sync owns it.
type follower struct {
	agent      *Agent
	kit        *agent.Run
	nodes      *agent.Objects[*corev1.Node]
	operations *agent.Objects[*v1alpha1.NodeOperation]
	cloud      dynamic.NamespaceableResourceInterface
	reported   map[string]types.UID // operations that this run has reported on, and the uids of their objects
	linkPassed bool                 // the state of the link has been passed to the agent: linked
	linked     bool
	rescue     Rescue
	// rescueReports are those that the rescue session has taken.
	rescueReports map[types.UID]string
	again         bool   // how operations ended is to be reported again
	seen          string // the last passed state of the own Node: its version, and whether all operations were known
}

// start begins one run. Its watches are optional: local requests need neither.
func (m *Module) start(ctx context.Context, kit *agent.Run) (agent.Sync, error) {
	cloud, err := dynamic.NewForConfig(m.cloud)
	if err != nil {
		return nil, fmt.Errorf("making the client for operations in the cloud: %w", err)
	}
	resource := v1alpha1.Resource(v1alpha1.NodeOperations)
	f := &follower{agent: m.agent, kit: kit, cloud: cloud.Resource(resource), rescue: m.rescue, reported: map[string]types.UID{}}
	node := m.agent.config.NodeName
	if f.nodes, err = agent.Watch(kit, corev1.SchemeGroupVersion.WithResource("nodes"), &corev1.Node{},
		agent.Selection{Fields: "metadata.name=" + node, Optional: true}); err != nil {
		return nil, err
	}
	if f.operations, err = agent.Watch(kit, resource, &v1alpha1.NodeOperation{},
		agent.Selection{Fields: "spec.nodeName=" + node, Optional: true}); err != nil {
		return nil, err
	}
	started := make(chan struct{})
	kit.Go(func(ctx context.Context) error { return m.agent.run(ctx, kit.Recorder(), func() { close(started) }) })
	select {
	case <-started:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	var rescued <-chan struct{}
	if m.rescue != nil {
		rescued = m.rescue.Changed()
	}
	kit.Go(func(ctx context.Context) error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-m.agent.changed:
			case <-rescued:
			}
			kit.Wake()
		}
	})
	return f.sync, nil
}

// tellLink passes the state of the link to the agent, once: every change of the agent's state
// wakes this module.
func (f *follower) tellLink(ctx context.Context) error {
	up := f.kit.Link().Up
	if f.linkPassed && f.linked == up {
		return nil
	}
	if err := f.agent.Reachable(ctx, up); err != nil {
		return err
	}
	f.linkPassed, f.linked = true, up
	return nil
}

// sync brings both sides up to date.
func (f *follower) sync(ctx context.Context) (time.Duration, error) {
	var errs []error
	note := func(about string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", about, err))
		}
	}
	note("the link", f.tellLink(ctx))
	taken := f.operations.Synced()
	if taken {
		for name, err := range f.take(ctx) {
			note("taking "+name, err)
			taken = taken && err == nil
		}
	}
	if node, there := f.nodes.Get(f.agent.config.NodeName); there {
		// Once per version: the object may lag behind the agent's own changes. The cordon's owner
		// is evaluated once all operations that may need it are known.
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
	note("reporting", f.report(ctx))
	next, err := f.rescued(ctx)
	note("the rescue session", err)
	return next, errors.Join(errs...)
}

// conditionOf reports whether the kubelet of this boot set the node Ready, and whether the node
// takes pods. An earlier boot's kubelet may have set it too.
func conditionOf(node *corev1.Node, boot string) (ready, open bool) {
	ready = isReady(node)
	if said := node.Status.NodeInfo.BootID; said != "" && boot != "" && said != boot {
		ready = false
	}
	return ready, !node.Spec.Unschedulable
}
