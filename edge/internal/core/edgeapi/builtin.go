package edgeapi

import (
	"reflect"
	"slices"
	"strings"
	"sync"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubeversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes/scheme"
)

// builtin is one of Kubernetes' own resources.
type builtin struct {
	kind       schema.GroupVersionKind
	namespaced bool
	verbs      []string
}

// builtins reads Kubernetes' own resources off the scheme: the types with a list and object
// metadata. The scheme does not have the cluster-scoped ones and those that lack a verb: they are
// listed below; the test compares all of it with Kubernetes' generated client. To read it off that
// client here, by reflection over methods, makes the linker keep every exported method of edgecore
// (0071).
var builtins = sync.OnceValue(func() map[schema.GroupVersionResource]builtin {
	all := map[schema.GroupVersionResource]builtin{}
	for kind, t := range scheme.Scheme.AllKnownTypes() {
		if kind.Version == runtime.APIVersionInternal || !scheme.Scheme.Recognizes(kind.GroupVersion().WithKind(kind.Kind+"List")) {
			continue
		}
		if _, ok := reflect.New(t).Interface().(metav1.ObjectMetaAccessor); !ok {
			continue
		}
		resource, _ := apimeta.UnsafeGuessKindToResource(kind)
		b := builtin{kind: kind, namespaced: !slices.Contains(clusterScoped[resource.Group], resource.Resource), verbs: verbs}
		if slices.Contains(oneByOne, resource.GroupResource()) {
			b.verbs = slices.DeleteFunc(slices.Clone(verbs), func(verb string) bool { return verb == "deletecollection" })
		}
		all[resource] = b
	}
	return all
})

var verbs = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}

// clusterScoped are the resources without a namespace, by their group.
var clusterScoped = map[string][]string{
	"": {"componentstatuses", "namespaces", "nodes", "persistentvolumes"},
	"admissionregistration.k8s.io": {
		"mutatingadmissionpolicies", "mutatingadmissionpolicybindings", "mutatingwebhookconfigurations",
		"validatingadmissionpolicies", "validatingadmissionpolicybindings", "validatingwebhookconfigurations",
	},
	"certificates.k8s.io":          {"certificatesigningrequests", "clustertrustbundles"},
	"flowcontrol.apiserver.k8s.io": {"flowschemas", "prioritylevelconfigurations"},
	"internal.apiserver.k8s.io":    {"storageversions"},
	"networking.k8s.io":            {"ingressclasses", "ipaddresses", "servicecidrs"},
	"node.k8s.io":                  {"runtimeclasses"},
	"rbac.authorization.k8s.io":    {"clusterrolebindings", "clusterroles"},
	"resource.k8s.io":              {"deviceclasses", "devicetaintrules", "resourcepoolstatusrequests", "resourceslices"},
	"scheduling.k8s.io":            {"priorityclasses"},
	"storage.k8s.io":               {"csidrivers", "csinodes", "storageclasses", "volumeattachments", "volumeattributesclasses"},
	"storagemigration.k8s.io":      {"storageversionmigrations"},
}

// oneByOne are the resources that kube-apiserver deletes by their names alone.
var oneByOne = []schema.GroupResource{{Resource: "namespaces"}, {Resource: "services"}}

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

// builtinLists makes discovery documents of the stable versions of Kubernetes' own resources and of
// the other cached resources.
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
