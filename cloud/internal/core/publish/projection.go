package publish

import (
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/common/api/v1alpha1"
)

// Sites maps devices to sites.
type Sites interface {
	// SiteOf is the site of a node; not known before all nodes and pools are.
	SiteOf(node string) (site string, known bool)
	// Concerns reports whether a node is of a site (own), or of one that it reaches.
	Concerns(site, node string) (own, reached bool)
	// Title is a site's name for people, and for the zone of its endpoints.
	Title(site string) string
}

// triggerAnnotation changes with every pod of a Service, wherever it is.
const triggerAnnotation = "endpoints.kubernetes.io/last-change-trigger-time"

func projected(gvr schema.GroupVersionResource) bool {
	return gvr == discoveryv1.SchemeGroupVersion.WithResource("endpointslices")
}

// projection is the EndpointSlices as one site gets them: with the endpoints on its own nodes, on
// those of sites that it reaches, and without a node. Slices without any of these are not sent,
// except the two that devices stand for themselves. So a rollout elsewhere causes no changes for
// the site.
//
// Changes of the collection come with its store held for writing, a fill reads it: the two never
// meet, and each object is put as it is last.
type projection struct {
	site  string
	sites Sites
	base  *kube.Store
	store *kube.Store

	filling sync.Mutex
}

func newProjection(site string, sites Sites, base *kube.Store) *projection {
	return &projection{site: site, sites: sites, base: base, store: base.Projection()}
}

// changed follows the collection.
func (p *projection) changed(old, now *kube.Object) {
	if now == nil {
		p.store.Delete(old.Key)
		return
	}
	p.put(now)
}

func (p *projection) put(o *kube.Object) {
	s := &discoveryv1.EndpointSlice{}
	if err := kube.FromProtobuf(o.Raw, discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), s); err != nil {
		p.store.Delete(o.Key) // cloudcore encoded it itself
		return
	}
	s.ResourceVersion = o.Revision
	if s = p.project(s); s == nil {
		p.store.Delete(o.Key)
		return
	}
	if err := p.store.Put(s); err != nil {
		p.store.Delete(o.Key)
	}
}

// fill makes it again after sites have changed, and for the first time.
func (p *projection) fill() {
	p.filling.Lock()
	defer p.filling.Unlock()
	if _, known := p.sites.SiteOf(""); !known || !p.base.HasSynced() {
		return
	}
	p.base.Each(&kube.Selection{Labels: labels.Everything(), Fields: fields.Everything()}, func(o *kube.Object) bool {
		p.put(o)
		return true
	})
	p.store.Complete()
}

func (p *projection) project(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	title := p.sites.Title(p.site)
	kept := s.Endpoints[:0]
	for _, e := range s.Endpoints {
		if e.NodeName != nil {
			own, reached := p.sites.Concerns(p.site, *e.NodeName)
			if !own && !reached {
				continue
			}
			zone := title
			if reached && !own {
				// Its own site's: the proxy pays no heed to hints where one endpoint is in no zone.
				theirs, _ := p.sites.SiteOf(*e.NodeName)
				zone = p.sites.Title(theirs)
			}
			e.Zone = &zone
		}
		kept = append(kept, e)
	}
	if len(kept) == 0 && !standIn(s) {
		return nil
	}
	s.Endpoints = kept
	annotations := map[string]string{v1alpha1.SiteAnnotation: title}
	for k, v := range s.Annotations {
		if k != triggerAnnotation {
			annotations[k] = v
		}
	}
	s.Annotations, s.Generation = annotations, 0
	return s
}

// standIn reports whether devices stand for the Service themselves.
func standIn(s *discoveryv1.EndpointSlice) bool {
	switch s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName] {
	case metav1.NamespaceDefault + "/kubernetes", metav1.NamespaceSystem + "/kube-dns":
		return true
	}
	return false
}
