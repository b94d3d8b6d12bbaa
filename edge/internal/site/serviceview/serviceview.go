// Package serviceview is the Services and EndpointSlices of the edge API as one copy for all
// readers in edgecore.
//
// It owns the two informers. It shows no EndpointSlice before they are corrected by the device's
// data of its own pods, and of all objects only the fields that its readers use (trim.go): with a
// thousand Services that is half of their memory. Objects in it are shared and must not be changed.
// All methods may be called by any goroutine, before Run too.
package serviceview

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
)

// Name is the module's address on the bus.
const Name message.Name = "serviceview"

// View is the module. It runs once.
type View struct {
	services, slices cache.SharedIndexInformer
	corrected        <-chan struct{}
	trimmer          *trimmer
}

// New makes a View of the edge API that follows Services at once, and EndpointSlices when corrected
// is closed; not at all where it is nil.
func New(api *rest.Config, corrected <-chan struct{}) (*View, error) {
	t := newTrimmer()
	v := &View{corrected: corrected, trimmer: t}
	var err error
	if v.services, err = informer(api, corev1.SchemeGroupVersion, "services", &corev1.Service{}, serviceIndexers(), t); err != nil {
		return nil, err
	}
	v.slices, err = informer(api, discoveryv1.SchemeGroupVersion, "endpointslices", &discoveryv1.EndpointSlice{}, sliceIndexers(), t)
	if err != nil {
		return nil, err
	}
	return v, nil
}

func informer(api *rest.Config, gv schema.GroupVersion, resource string, example runtime.Object, by cache.Indexers, t *trimmer) (cache.SharedIndexInformer, error) {
	config := rest.CopyConfig(api)
	config.GroupVersion, config.APIPath = &gv, "/apis"
	if gv.Group == "" {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("making the client for %s: %w", resource, err)
	}
	source := cache.NewFilteredListWatchFromClient(client, resource, metav1.NamespaceAll, func(*metav1.ListOptions) {})
	informer := cache.NewSharedIndexInformer(source, example, 0, by)
	if err := informer.SetTransform(t.trim); err != nil {
		return nil, fmt.Errorf("watching %s: %w", resource, err)
	}
	// Not client-go's own handler, whose delay all watches of the process share. The reflector has
	// a back-off too.
	if err := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
		klog.FromContext(ctx).V(2).Info("Watch of the edge API ended, reopening it", "resource", resource, "err", err)
	}); err != nil {
		return nil, fmt.Errorf("watching %s: %w", resource, err)
	}
	return informer, nil
}

// Name implements beehive.Module.
func (*View) Name() message.Name { return Name }

// Run implements beehive.Module.
func (v *View) Run(ctx context.Context, port *beehive.Port) error {
	port.Ready()
	v.Follow(ctx)
	return nil
}

// Follow follows the edge API until ctx ends.
func (v *View) Follow(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { v.services.RunWithContext(ctx) })
	running.Go(func() {
		select {
		case <-ctx.Done():
		case <-v.corrected:
			v.slices.RunWithContext(ctx)
		}
	})
	running.Wait()
}

// Shared takes a Service that the caller alone has, and returns the View's copy of it, or one
// that the View will use: there need not be two. It must not be changed. Without a View it
// stays the caller's.
func (v *View) Shared(s *corev1.Service) *corev1.Service {
	if v == nil {
		return s
	}
	return v.trimmer.shared(s)
}

// Services is the informer of Services.
func (v *View) Services() cache.SharedIndexInformer { return v.services }

// Slices is the informer of EndpointSlices.
func (v *View) Slices() cache.SharedIndexInformer { return v.slices }

// ServicesAt are the Services with a cluster IP; with ClusterIPNone, the headless ones.
func (v *View) ServicesAt(address string) []*corev1.Service {
	return lookup(v.services, byAddress, address, func(s *corev1.Service) bool { return slices.Contains(clusterIPs(s), address) })
}

// SlicesOf are the EndpointSlices of a Service.
func (v *View) SlicesOf(namespace, service string) []*discoveryv1.EndpointSlice {
	return lookup(v.slices, byService, namespace+"/"+service, func(s *discoveryv1.EndpointSlice) bool {
		return s.Namespace == namespace && s.Labels[discoveryv1.LabelServiceName] == service
	})
}

// HasSynced reports whether both are known.
func (v *View) HasSynced() bool { return v.services.HasSynced() && v.slices.HasSynced() }
