package app

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

// Name is the module's.
const Name message.Name = "apps"

// Config configures the agent.
type Config struct {
	NodeName string
	API      *rest.Config
	Reporter agent.Reporter
	Memory   agent.Memory
	// Alive reports whether the kubelet lives.
	Alive func() bool
	Rules Rules
	// Fetcher gets content to the device; nil: content is neither fetched nor reported.
	Fetcher Fetcher
}

// Status is the part of `edgecore status` for applications.
type Status struct {
	Silent bool  `json:"silent"` // no reports: there is no link for too long
	Apps   []App `json:"apps"`
}

// App is one application on this device.
type App struct {
	App string `json:"app"`
	v1alpha1.EdgeAppNode
}

// Agent reports applications.
type Agent struct {
	*agent.Module
	config Config

	mu     sync.Mutex
	status Status
}

// New makes the agent.
func New(config Config) *Agent {
	a := &Agent{config: config}
	a.Module = agent.New(agent.Config{Name: Name, NodeName: config.NodeName, API: config.API, Reporter: config.Reporter, Start: a.start, Resync: alivePoll})
	return a
}

// alivePoll is the interval of checks of the kubelet: its end is no event.
const alivePoll = 10 * time.Second

// Status is how the applications are, for any goroutine.
func (a *Agent) Status() Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	return Status{a.status.Silent, append([]App(nil), a.status.Apps...)}
}

// round is one run of the agent. Its Sync owns it.
type round struct {
	*Agent
	run     *agent.Run
	apps    *agent.Objects[*v1alpha1.EdgeApp]
	pods    *agent.Objects[*corev1.Pod]
	fetches *fetches
	known   map[string]Known
	said    map[string]v1alpha1.EdgeAppNode
	linked  bool      // when sync was called last
	lost    time.Time // the link, or since when it is down
}

func (a *Agent) start(_ context.Context, r *agent.Run) (agent.Sync, error) {
	apps, err := agent.Watch(r, v1alpha1.Resource(v1alpha1.EdgeApps), &v1alpha1.EdgeApp{}, agent.Selection{})
	if err != nil {
		return nil, err
	}
	pods, err := agent.Watch(r, corev1.SchemeGroupVersion.WithResource("pods"), &corev1.Pod{}, agent.Selection{Fields: "spec.nodeName=" + a.config.NodeName})
	if err != nil {
		return nil, err
	}
	known, err := a.load()
	if err != nil {
		return nil, err
	}
	o := &round{Agent: a, run: r, apps: apps, pods: pods, known: known, said: map[string]v1alpha1.EdgeAppNode{}, lost: time.Now()}
	if a.config.Fetcher != nil {
		o.fetches = newFetches(a.config.Fetcher, r.Wake)
		r.Go(o.fetches.run)
	}
	return o.sync, nil
}

func (a *Agent) load() (map[string]Known, error) {
	saved, err := a.config.Memory.Load()
	if err != nil {
		return nil, err
	}
	known := map[string]Known{}
	for key, raw := range saved {
		var k Known
		if json.Unmarshal(raw, &k) == nil { // one that can't be read is as good as forgotten
			known[key] = k
		}
	}
	return known, nil
}

// save keeps changes.
func (o *round) save(ctx context.Context, now map[string]Known) error {
	changes := map[string][]byte{}
	for key, k := range now {
		if have, was := o.known[key]; was && have.UID == k.UID && have.Unknown.Equal(k.Unknown) {
			continue
		}
		raw, err := json.Marshal(k)
		if err != nil {
			return fmt.Errorf("encoding the state of %s: %w", key, err)
		}
		changes[key] = raw
	}
	for key := range o.known {
		if _, still := now[key]; !still {
			changes[key] = nil
		}
	}
	if len(changes) == 0 {
		return nil
	}
	if err := o.config.Memory.Save(ctx, changes); err != nil {
		return err
	}
	o.known = maps.Clone(now)
	return nil
}

func (o *round) sync(ctx context.Context) (time.Duration, error) {
	now := time.Now()
	link := o.run.Link()
	if link.Up || o.linked {
		o.lost = now // the change of the link wakes this
	}
	o.linked = link.Up
	s := State{
		Node: o.config.NodeName, Apps: o.apps.List(), Pods: o.pods.List(), Alive: o.config.Alive(), Linked: link.Up, Lost: o.lost, Content: o.fetches.have(),
	}
	o.fetches.want(wanted(s), named(s))
	p := s.Make(o.known, o.config.Rules, now)
	// Kept first: reports must be known over a restart.
	if err := o.save(ctx, p.Known); err != nil {
		return 0, err
	}
	if was := o.show(p); p.Silent && !was {
		klog.FromContext(ctx).Info("Pausing reports of applications until there is a link", "lost", o.lost)
	} else if was && !p.Silent {
		klog.FromContext(ctx).Info("Resuming reports of applications")
	}
	if p.Silent {
		return p.Next, nil
	}
	for key, e := range p.Entries {
		ref := refOf(key)
		if have, ok := o.said[key]; ok && same(have, e) {
			e = have // with the time of its report
		} else {
			e.CollectTime = timeOf(now)
		}
		if err := o.run.Reports.Set(ref, p.Known[key].UID, e); err != nil {
			return 0, err
		}
		o.said[key] = e
	}
	for key := range o.said {
		if _, still := p.Entries[key]; !still {
			o.run.Reports.Drop(refOf(key)) // the application is gone, and its status with it
			delete(o.said, key)
		}
	}
	return p.Next, nil
}

// show makes the plan visible, and returns the Silent of before.
func (o *round) show(p Plan) (was bool) {
	status := Status{Silent: p.Silent}
	for key, e := range p.Entries {
		status.Apps = append(status.Apps, App{key, e})
	}
	slices.SortFunc(status.Apps, func(a, b App) int { return cmp.Compare(a.App, b.App) })
	o.mu.Lock()
	defer o.mu.Unlock()
	was = o.status.Silent
	o.status = status
	return was
}

func refOf(key string) object.Ref {
	namespace, name, _ := strings.Cut(key, "/")
	return object.Ref{Resource: v1alpha1.Resource(v1alpha1.EdgeApps), Namespace: namespace, Name: name}
}
