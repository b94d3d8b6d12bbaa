package route

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/kernel/netroute"
	"github.com/skerry-io/skerry/edge/internal/linkstate"
)

// Name is the module's address on the bus.
const Name message.Name = "route"

// maxEvents bounds the kernel's events in the inbox; beyond it everything is read anew.
const maxEvents = 8192

// news is what happened since the loop looked last.
type news struct {
	objects  map[string]*v1alpha1.StaticRoute // nil: gone
	known    bool
	node     *corev1.Node
	ranges   *[]netip.Prefix
	link     *linkNews
	watching *bool
	events   []netroute.Event
	lost     bool // there were more events
}

type linkNews struct {
	up     bool
	remote netip.Addr
}

// inbox collects news for the loop. Nobody waits for it; its size is bounded by what there is (one entry an object) and by maxEvents.
type inbox struct {
	wake chan struct{} // one slot

	mu   sync.Mutex
	news news
}

func newInbox() *inbox { return &inbox{wake: make(chan struct{}, 1)} }

func (i *inbox) put(change func(*news)) {
	i.mu.Lock()
	change(&i.news)
	i.mu.Unlock()
	select {
	case i.wake <- struct{}{}:
	default:
	}
}

func (i *inbox) take() news {
	i.mu.Lock()
	defer i.mu.Unlock()
	n := i.news
	i.news = news{}
	return n
}

// Name implements beehive.Module.
func (a *Agent) Name() message.Name { return Name }

// Topics implements beehive.Topics.
func (a *Agent) Topics() []message.Key {
	return []message.Key{linkstate.Up.Key(), linkstate.Down.Key()}
}

// readyAfter is how long the next module waits for the routes where what the cloud wants is not in the store yet.
const readyAfter = 2 * time.Second

// Run implements beehive.Module. It is ready once the routes are as the store wants them; or soon, where the store does not know.
func (a *Agent) Run(ctx context.Context, port *beehive.Port) error {
	tools, err := a.config.Open(ctx)
	if err != nil {
		return err
	}
	defer tools.Close()
	a.tools, a.world, a.inbox = tools, newWorld(), newInbox()
	informers, err := a.informers()
	if err != nil {
		return err
	}
	ready := sync.OnceFunc(port.Ready)
	late := time.AfterFunc(readyAfter, ready)
	defer late.Stop()
	if a.config.Hub != "" {
		a.ask = func(ctx context.Context) error { return a.askCloud(ctx, port) }
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, i := range informers {
		g.Go(func() error {
			i.RunWithContext(ctx)
			return nil
		})
	}
	g.Go(func() error { return a.watch(ctx) })
	g.Go(func() error { return a.receive(ctx, port) })
	g.Go(func() error { return a.loop(ctx, ready) })
	return g.Wait()
}

// askCloud asks for something that every node may know, end to end over the link. Any answer will do.
func (a *Agent) askCloud(ctx context.Context, port *beehive.Port) error {
	q := &topicpb.APIRequest{Method: http.MethodGet, Path: "/version", Accept: runtime.ContentTypeJSON}
	if end, ok := ctx.Deadline(); ok {
		q.TimeoutMillis = time.Until(end).Milliseconds()
	}
	_, err := port.SendSync(ctx, a.config.Hub, topic.APIRequest.New(message.Resource{}, q))
	return err
}

// receive hears of the link.
func (a *Agent) receive(ctx context.Context, port *beehive.Port) error {
	for {
		m, err := port.Receive(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		switch m.Key() {
		case linkstate.Up.Key():
			up, err := linkstate.Up.Content(m)
			if err != nil {
				continue
			}
			link := &linkNews{up: true}
			if at, err := netip.ParseAddrPort(up.Remote); err == nil {
				link.remote = at.Addr().Unmap()
			}
			a.inbox.put(func(n *news) { n.link = link })
		case linkstate.Down.Key():
			a.inbox.put(func(n *news) { n.link = &linkNews{} })
		}
	}
}

// watch follows the kernel; when events were lost, it begins anew, and everything is read.
func (a *Agent) watch(ctx context.Context) error {
	log := klog.FromContext(ctx)
	for {
		err := a.tools.Kernel.Watch(ctx, func() {
			yes := true
			a.inbox.put(func(n *news) { n.watching = &yes })
		}, func(e netroute.Event) {
			a.inbox.put(func(n *news) {
				switch {
				case n.lost:
				case len(n.events) >= maxEvents:
					n.events, n.lost = nil, true
				default:
					n.events = append(n.events, e)
				}
			})
		})
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, netroute.ErrLost) {
			log.V(1).Info("Events of the kernel were lost; everything is read again", "err", err)
		} else {
			return fmt.Errorf("following the kernel's routes: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(a.config.ScanPause):
		}
	}
}

// informers follow the StaticRoutes, this node's Node and the ranges of Services.
func (a *Agent) informers() ([]cache.SharedIndexInformer, error) {
	own := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(own); err != nil {
		return nil, fmt.Errorf("learning the kinds of %s: %w", v1alpha1.Group, err)
	}
	routes, err := a.informer(v1alpha1.SchemeGroupVersion, serializer.NewCodecFactory(own), runtime.ContentTypeJSON, v1alpha1.StaticRoutes, fields.Everything(), &v1alpha1.StaticRoute{})
	if err != nil {
		return nil, err
	}
	nodes, err := a.informer(corev1.SchemeGroupVersion, scheme.Codecs, runtime.ContentTypeProtobuf, "nodes",
		fields.OneTermEqualSelector("metadata.name", a.config.NodeName), &corev1.Node{})
	if err != nil {
		return nil, err
	}
	ranges, err := a.informer(networkingv1.SchemeGroupVersion, scheme.Codecs, runtime.ContentTypeProtobuf, "servicecidrs", fields.Everything(), &networkingv1.ServiceCIDR{})
	if err != nil {
		return nil, err
	}
	registration, err := follow(routes, func(o *v1alpha1.StaticRoute, there bool) {
		a.inbox.put(func(n *news) {
			if n.objects == nil {
				n.objects = map[string]*v1alpha1.StaticRoute{}
			}
			if n.objects[o.Name] = o; !there {
				n.objects[o.Name] = nil
			}
		})
	})
	if err != nil {
		return nil, err
	}
	if _, err := follow(nodes, func(o *corev1.Node, there bool) {
		if there { // a node that was deleted in the cloud goes on as it was until it is told otherwise
			a.inbox.put(func(n *news) { n.node = o })
		}
	}); err != nil {
		return nil, err
	}
	if _, err := follow(ranges, func(*networkingv1.ServiceCIDR, bool) {
		all := serviceRanges(ranges.GetStore().List())
		a.inbox.put(func(n *news) { n.ranges = &all })
	}); err != nil {
		return nil, err
	}
	return []cache.SharedIndexInformer{&knower{routes, registration.HasSynced, func() { a.inbox.put(func(n *news) { n.known = true }) }}, nodes, ranges}, nil
}

// knower says once when its informer has handed over all that there was.
type knower struct {
	cache.SharedIndexInformer
	synced func() bool
	tell   func()
}

func (k *knower) RunWithContext(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), k.synced) {
			k.tell()
		}
	})
	k.SharedIndexInformer.RunWithContext(ctx)
	wg.Wait()
}

func (a *Agent) informer(gv schema.GroupVersion, codecs serializer.CodecFactory, content, resource string, selector fields.Selector, example runtime.Object) (
	cache.SharedIndexInformer, error) {
	config := rest.CopyConfig(a.config.API)
	config.GroupVersion, config.APIPath = &gv, "/apis"
	if gv.Group == "" {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = codecs.WithoutConversion()
	config.ContentType, config.AcceptContentTypes = content, runtime.ContentTypeJSON
	if content != runtime.ContentTypeJSON {
		config.AcceptContentTypes = content + "," + runtime.ContentTypeJSON
	}
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("making the client for %s: %w", resource, err)
	}
	return cache.NewSharedIndexInformer(cache.NewListWatchFromClient(client, resource, "", selector), example, 0, cache.Indexers{}), nil
}

func follow[T any](i cache.SharedIndexInformer, tell func(o T, there bool)) (cache.ResourceEventHandlerRegistration, error) {
	registration, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			if o, ok := o.(T); ok {
				tell(o, true)
			}
		},
		UpdateFunc: func(_, o any) {
			if o, ok := o.(T); ok {
				tell(o, true)
			}
		},
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if o, ok := o.(T); ok {
				tell(o, false)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("following the edge API: %w", err)
	}
	return registration, nil
}

func serviceRanges(all []any) []netip.Prefix {
	ranges := []netip.Prefix{}
	for _, o := range all {
		if o, ok := o.(*networkingv1.ServiceCIDR); ok {
			for _, text := range o.Spec.CIDRs {
				if p, err := netip.ParsePrefix(text); err == nil {
					ranges = append(ranges, p)
				}
			}
		}
	}
	slices.SortFunc(ranges, netip.Prefix.Compare)
	return ranges
}
