package edgeapi

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientdiscovery "k8s.io/client-go/discovery"
	"k8s.io/klog/v2"

	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// aggregatedJSON is the content type of a whole discovery document (KEP-3352).
const aggregatedJSON = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// discovery serves the discovery documents. While there is a link kube-apiserver answers, and
// complete documents are kept; without a link the answer is built from the kept ones and
// Kubernetes' own kinds.
type discovery struct {
	backend Backend
	state   State

	load sync.Once
	mu   sync.Mutex
	kept kept
}

// kept has kube-apiserver's last documents. It is stored as JSON.
type kept struct {
	Core   *apidiscoveryv2.APIGroupDiscoveryList `json:"core,omitempty"`   // of /api
	Groups *apidiscoveryv2.APIGroupDiscoveryList `json:"groups,omitempty"` // of /apis
	// Versions are lists of single versions that were asked for because the kind of a
	// resource wasn't known.
	Versions map[string]*metav1.APIResourceList `json:"versions,omitempty"`
}

func newDiscovery(backend Backend, state State) *discovery {
	return &discovery{backend: backend, state: state}
}

// documents returns the kept documents.
func (d *discovery) documents() kept {
	d.load.Do(func() {
		raw, err := d.state.Load(discoveryKey)
		var k kept
		if err != nil || raw == nil || json.Unmarshal(raw, &k) != nil {
			return // not stored yet, or unreadable: it is only a copy, replaced by the next one
		}
		d.mu.Lock()
		d.kept = k
		d.mu.Unlock()
	})
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.kept
}

// keep changes the kept documents, and writes them to the disk only if they differ.
func (d *discovery) keep(ctx context.Context, change func(*kept)) {
	before := d.documents()
	after := before
	change(&after)
	d.mu.Lock()
	d.kept = after
	d.mu.Unlock()
	was, errBefore := json.Marshal(before)
	raw, err := json.Marshal(after)
	if err != nil || errBefore == nil && string(was) == string(raw) {
		return
	}
	if err := d.state.Keep(ctx, discoveryKey, raw); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to store the discovery document: without a link kubectl will only find Kubernetes' own resources")
	}
}

// see keeps a whole document that passes by.
func (d *discovery) see(ctx context.Context, path string, answer *topicpb.APIResponse) {
	if answer.GetCode() != http.StatusOK || path != "/api" && path != "/apis" {
		return
	}
	var list apidiscoveryv2.APIGroupDiscoveryList
	if json.Unmarshal(answer.GetBody(), &list) != nil || list.GroupVersionKind() != apidiscoveryv2.SchemeGroupVersion.WithKind("APIGroupDiscoveryList") {
		return
	}
	d.keep(ctx, func(k *kept) {
		if path == "/api" {
			k.Core = &list
		} else {
			k.Groups = &list
		}
	})
}

// kind finds the kind of a resource: among Kubernetes' own, then in the kept documents, then by
// asking.
func (d *discovery) kind(ctx context.Context, resource schema.GroupVersionResource) (string, bool) {
	if b, ok := builtins()[resource]; ok {
		return b.kind.Kind, true
	}
	if kind, ok := d.documents().kind(resource); ok {
		return kind, true
	}
	path := "/apis/" + resource.Group + "/" + resource.Version
	if resource.Group == "" {
		path = "/api/" + resource.Version
	}
	answer, err := d.backend.Request(ctx, &topicpb.APIRequest{Method: http.MethodGet, Path: path, Accept: runtime.ContentTypeJSON})
	var list metav1.APIResourceList
	if err != nil || answer.GetCode() != http.StatusOK || json.Unmarshal(answer.GetBody(), &list) != nil {
		return "", false
	}
	d.keep(ctx, func(k *kept) {
		k.Versions = maps.Clone(k.Versions)
		if k.Versions == nil {
			k.Versions = map[string]*metav1.APIResourceList{}
		}
		k.Versions[resource.GroupVersion().String()] = &list
	})
	return d.documents().kind(resource)
}

func (k kept) kind(resource schema.GroupVersionResource) (string, bool) {
	if list := k.Versions[resource.GroupVersion().String()]; list != nil {
		for _, r := range list.APIResources {
			if r.Name == resource.Resource {
				return r.Kind, true
			}
		}
	}
	for _, list := range []*apidiscoveryv2.APIGroupDiscoveryList{k.Core, k.Groups} {
		if list == nil {
			continue
		}
		for _, g := range list.Items {
			for _, v := range g.Versions {
				if g.Name != resource.Group || v.Version != resource.Version {
					continue
				}
				for _, r := range v.Resources {
					if r.Resource == resource.Resource && r.ResponseKind != nil {
						return r.ResponseKind.Kind, true
					}
				}
			}
		}
	}
	return "", false
}

// lists returns the device's documents of /api and /apis.
func (d *discovery) lists() (core, groups *apidiscoveryv2.APIGroupDiscoveryList) {
	k := d.documents()
	core, groups = k.Core, k.Groups
	if core == nil || groups == nil {
		builtinCore, builtinGroups := builtinLists(d.backend.Resources())
		if core == nil {
			core = builtinCore
		}
		if groups == nil {
			groups = builtinGroups
		}
	}
	return core, groups
}

// legacy answers the discovery paths before aggregated documents: nil for an unknown path.
func legacy(path string, core, groups *apidiscoveryv2.APIGroupDiscoveryList) any {
	if path == "/api" {
		return &metav1.APIVersions{
			TypeMeta:                   metav1.TypeMeta{Kind: "APIVersions"},
			Versions:                   []string{"v1"},
			ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{},
		}
	}
	source := groups
	if strings.HasPrefix(path, "/api/") {
		source = core
	}
	list, resources, _ := clientdiscovery.SplitGroupsAndResources(*source)
	if path == "/apis" {
		list.TypeMeta = metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}
		return list
	}
	_, rest, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if group, found := strings.CutSuffix(path, "/"+rest); found && group == "/apis" && !strings.Contains(rest, "/") {
		i := slices.IndexFunc(list.Groups, func(g metav1.APIGroup) bool { return g.Name == rest })
		if i < 0 {
			return nil
		}
		g := list.Groups[i]
		g.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
		return &g
	}
	gv, err := schema.ParseGroupVersion(rest)
	if err != nil {
		return nil
	}
	versions, ok := resources[gv]
	if !ok {
		return nil
	}
	versions.TypeMeta = metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}
	return versions
}
