package api

import (
	"reflect"
	"slices"
	"strings"
	"sync"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubeversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
)

// builtin is one of Kubernetes' own resources.
type builtin struct {
	kind       schema.GroupVersionKind
	namespaced bool
	verbs      []string
}

// builtins reads Kubernetes' own resources off its generated client, which has a method for each:
// its name is the resource's, its argument tells whether the resource is in a namespace, and the
// methods of what it returns are the verbs. So there is no list here that could grow old.
var builtins = sync.OnceValue(func() map[schema.GroupVersionResource]builtin {
	all := map[schema.GroupVersionResource]builtin{}
	for group := range reflect.TypeFor[kubernetes.Interface]().Methods() {
		if group.Type.NumOut() != 1 || group.Type.Out(0).Kind() != reflect.Interface {
			continue
		}
		for method := range group.Type.Out(0).Methods() {
			if method.Type.NumOut() != 1 || method.Type.Out(0).Kind() != reflect.Interface {
				continue
			}
			client := method.Type.Out(0)
			get, ok := client.MethodByName("Get")
			if !ok || get.Type.NumOut() != 2 || get.Type.Out(0).Kind() != reflect.Pointer {
				continue
			}
			o, ok := reflect.New(get.Type.Out(0).Elem()).Interface().(runtime.Object)
			if !ok {
				continue
			}
			kinds, _, err := scheme.Scheme.ObjectKinds(o)
			if err != nil {
				continue
			}
			b := builtin{kind: kinds[0], namespaced: method.Type.NumIn() == 1}
			for _, verb := range []string{"Create", "Delete", "DeleteCollection", "Get", "List", "Patch", "Update", "Watch"} {
				if _, ok := client.MethodByName(verb); ok {
					b.verbs = append(b.verbs, strings.ToLower(verb))
				}
			}
			all[b.kind.GroupVersion().WithResource(strings.ToLower(method.Name))] = b
		}
	}
	return all
})

// shortNames are those of kubectl's users; kube-apiserver's registries have them, and no
// generated code does.
var shortNames = map[schema.GroupResource][]string{
	{Resource: "configmaps"}:                                               {"cm"},
	{Resource: "endpoints"}:                                                {"ep"},
	{Resource: "events"}:                                                   {"ev"},
	{Resource: "limitranges"}:                                              {"limits"},
	{Resource: "namespaces"}:                                               {"ns"},
	{Resource: "nodes"}:                                                    {"no"},
	{Resource: "persistentvolumeclaims"}:                                   {"pvc"},
	{Resource: "persistentvolumes"}:                                        {"pv"},
	{Resource: "pods"}:                                                     {"po"},
	{Resource: "replicationcontrollers"}:                                   {"rc"},
	{Resource: "resourcequotas"}:                                           {"quota"},
	{Resource: "serviceaccounts"}:                                          {"sa"},
	{Resource: "services"}:                                                 {"svc"},
	{Group: "apps", Resource: "daemonsets"}:                                {"ds"},
	{Group: "apps", Resource: "deployments"}:                               {"deploy"},
	{Group: "apps", Resource: "replicasets"}:                               {"rs"},
	{Group: "apps", Resource: "statefulsets"}:                              {"sts"},
	{Group: "autoscaling", Resource: "horizontalpodautoscalers"}:           {"hpa"},
	{Group: "batch", Resource: "cronjobs"}:                                 {"cj"},
	{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}: {"csr"},
	{Group: "events.k8s.io", Resource: "events"}:                           {"ev"},
	{Group: "networking.k8s.io", Resource: "ingresses"}:                    {"ing"},
	{Group: "networking.k8s.io", Resource: "networkpolicies"}:              {"netpol"},
	{Group: "policy", Resource: "poddisruptionbudgets"}:                    {"pdb"},
	{Group: "scheduling.k8s.io", Resource: "priorityclasses"}:              {"pc"},
	{Group: "storage.k8s.io", Resource: "storageclasses"}:                  {"sc"},
}

// builtinLists makes discovery documents of the stable versions of Kubernetes' own resources, and
// of what is held beyond these.
func builtinLists(held []schema.GroupVersionResource) (core, groups *apidiscoveryv2.APIGroupDiscoveryList) {
	byVersion := map[schema.GroupVersion][]apidiscoveryv2.APIResourceDiscovery{}
	for resource, b := range builtins() {
		if !stable(resource.Version) && !slices.Contains(held, resource) {
			continue
		}
		scope := apidiscoveryv2.ScopeCluster
		if b.namespaced {
			scope = apidiscoveryv2.ScopeNamespace
		}
		byVersion[resource.GroupVersion()] = append(byVersion[resource.GroupVersion()], apidiscoveryv2.APIResourceDiscovery{
			Resource:         resource.Resource,
			ResponseKind:     &metav1.GroupVersionKind{Group: b.kind.Group, Version: b.kind.Version, Kind: b.kind.Kind},
			Scope:            scope,
			SingularResource: strings.ToLower(b.kind.Kind),
			Verbs:            b.verbs,
			ShortNames:       shortNames[resource.GroupResource()],
		})
	}
	byGroup := map[string]*apidiscoveryv2.APIGroupDiscovery{}
	for gv, resources := range byVersion {
		slices.SortFunc(resources, func(a, b apidiscoveryv2.APIResourceDiscovery) int { return strings.Compare(a.Resource, b.Resource) })
		g := byGroup[gv.Group]
		if g == nil {
			g = &apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: gv.Group}}
			byGroup[gv.Group] = g
		}
		g.Versions = append(g.Versions, apidiscoveryv2.APIVersionDiscovery{
			Version: gv.Version, Resources: resources, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent,
		})
	}
	list := func() *apidiscoveryv2.APIGroupDiscoveryList {
		return &apidiscoveryv2.APIGroupDiscoveryList{
			TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: apidiscoveryv2.SchemeGroupVersion.String()},
		}
	}
	core, groups = list(), list()
	for name, g := range byGroup {
		slices.SortFunc(g.Versions, func(a, b apidiscoveryv2.APIVersionDiscovery) int {
			return -kubeversion.CompareKubeAwareVersionStrings(a.Version, b.Version) // the first is the preferred one
		})
		if name == "" {
			core.Items = append(core.Items, *g)
		} else {
			groups.Items = append(groups.Items, *g)
		}
	}
	slices.SortFunc(groups.Items, func(a, b apidiscoveryv2.APIGroupDiscovery) int { return strings.Compare(a.Name, b.Name) })
	return core, groups
}

func stable(version string) bool {
	return !strings.Contains(version, "alpha") && !strings.Contains(version, "beta")
}
